"""How engines other than ours are spoken to: one file a dialect, without sockets.

Both sides of the house go through it: the control plane's loads and unloads, and the gateway's
requests. A replica's dialect stands before its URL: vllm+http://10.0.0.2:8000; none is ours.
"""

from adapters.dialects.dialect import Dialect
from adapters.dialects.grafthouse import GRAFTHOUSE
from adapters.dialects.sglang import SGLANG
from adapters.dialects.vllm import VLLM

DIALECTS: dict[str, Dialect] = {one.name: one for one in (GRAFTHOUSE, VLLM, SGLANG)}


def split_url(configured: str) -> tuple[Dialect, str]:
    """vllm+http://host:8000/ is (VLLM, http://host:8000). Raises ValueError for another dialect."""
    scheme, separator, rest = configured.rstrip("/").partition("://")
    name, plus, transport = scheme.rpartition("+")
    if not plus:
        return GRAFTHOUSE, f"{scheme}{separator}{rest}"
    if name not in DIALECTS:
        raise ValueError(f"{configured!r}: expected the dialect {', '.join(DIALECTS)}, got {name}")
    return DIALECTS[name], f"{transport}{separator}{rest}"
