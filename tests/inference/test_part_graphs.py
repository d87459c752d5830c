"""Steps with prompts in parts between calls of attention, padded: the same tokens as whole ones.

On the CPU the parts run op by op from the tensors that graphs would read.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from inference.part_graphs import MAX_TOKENS, PartGraphs, token_buckets
from tests.inference.driving import PROMPT, Client, greedy, make_client
from tests.inference.test_decode_graphs import answers, use_graph_inputs

MAX_ANSWERS = [30, 4, 19, 40, 1, 25]


def in_parts(base: Path, paths: dict[str, Path], max_tokens: int, **config: Any) -> Client:
    user = make_client(base, paths, "abc", **config)
    runner = user.engine._runner
    use_graph_inputs(user.engine)
    runner._parts = PartGraphs(runner.model, runner.kv, runner.lora, max_tokens, runner.last_tokens)
    return user


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("max_tokens", [40, 512])
@pytest.mark.parametrize(
    "config",
    [{"max_num_seqs": 6}, {"max_num_seqs": 6, "kv_block_size": 4, "max_batch_tokens": 50}],
    ids=["whole prompts", "chunks"],
)
def test_the_same_tokens_as_op_by_op(
    base: Path, paths: dict[str, Path], config: dict[str, int], max_tokens: int, overlap: bool
) -> None:
    want = answers(make_client(base, paths, "abc", **config), MAX_ANSWERS)
    user = in_parts(base, paths, max_tokens, overlap=overlap, **config)
    assert answers(user, MAX_ANSWERS) == want
    counts = user.engine.stats().steps_by_path
    assert counts["parts"] >= 3
    # Longer ones are launched as before.
    assert (counts.get("prefill", 0) > 0) is (max_tokens == 40)


def test_padding_writes_nothing_and_what_was_there_is_not_read(
    base: Path, paths: dict[str, Path]
) -> None:
    user = in_parts(base, paths, 512)
    runner = user.engine._runner
    assert runner._parts is not None
    runner._parts._out.fill_(float("nan"))
    before = runner.kv.clone()
    request_id = user.submit(PROMPT[:21], greedy(1), "a")
    user.step()
    assert user.tokens(request_id) == make_client(base, paths).ask(PROMPT[:21], greedy(1), "a")
    changed = (runner.kv != before).flatten(4).any(-1).any(0).any(0)
    assert int(changed.sum()) == 21


@pytest.mark.parametrize("most", [7, 32, 512, 600, MAX_TOKENS])
def test_buckets_rise_to_the_most_and_waste_little(most: int) -> None:
    sizes = token_buckets(most)
    assert list(sizes) == sorted(set(sizes)) and sizes[-1] == most
    assert all(after <= 1.26 * before for before, after in pairwise(sizes) if before >= 128)
