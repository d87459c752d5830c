"""The sum of shares on load, in Triton."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl


@triton.jit
def load_shares(p, stride_share, mask, SHARES: tl.constexpr):
    """fp32: what lies at p, p + stride_share, … of every share, added in this order."""
    total = tl.load(p, mask=mask, other=0.0).to(tl.float32)
    for _ in tl.static_range(1, SHARES):
        p += tl.cast(stride_share, tl.int64)
        total += tl.load(p, mask=mask, other=0.0).to(tl.float32)
    return total
