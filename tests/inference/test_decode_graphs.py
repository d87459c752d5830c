"""Decode steps from the tensors that graphs read: the same tokens as op by op, whatever the mix.

On the CPU the step runs op by op from the same tensors; tests with a GPU replay the graphs.
"""

from pathlib import Path

import pytest
import torch

from inference import Engine
from inference.decode_graphs import DecodeGraphs, bucket_sizes
from inference.plan import Work
from tests.inference.driving import PROMPT, Client, greedy, make_client

PROMPTS = [[(n * 37 + i * (n + 3)) % 256 for i in range(5 + 11 * n)] for n in range(6)]
NAMES = ["a", None, "b", "c", "a", None]


class CountedGraphs(DecodeGraphs):
    """How many rows each step had."""

    num_rows: list[int]

    def run(self, work):  # type: ignore[no-untyped-def]
        self.num_rows.append(len(work))
        return super().run(work)


def use_graph_inputs(engine: Engine) -> CountedGraphs:
    """The engine's decodes then go the graphs' way, uncaptured."""
    runner = engine._runner
    seqs, length = engine.config.max_num_seqs, engine.max_model_len
    graphs = CountedGraphs(runner.model, runner.kv, runner.lora, seqs, length, runner.last_tokens)
    graphs.num_rows = []
    runner._graphs = graphs
    return graphs


def answers(user: Client, max_tokens: list[int]) -> list[list[int]]:
    """Requests that end at different times, so that rows move up while others go on."""
    ids = []
    for prompt, name, number in zip(PROMPTS, NAMES, max_tokens, strict=True):
        ids.append(user.submit(prompt, greedy(number), name))
        user.step()
    user.drain()
    return [user.tokens(request_id) for request_id in ids]


@pytest.mark.parametrize(
    "config",
    [
        {"max_num_seqs": 6},
        {"max_num_seqs": 3},
        # So little KV memory that sequences are preempted and come back with other blocks.
        {"max_num_seqs": 6, "kv_cache_bytes": 96 << 10, "prefix_cache": False},
        {"max_num_seqs": 6, "kv_block_size": 4, "max_batch_tokens": 7},
    ],
    ids=["together", "fewer rows", "preempted", "small chunks"],
)
def test_the_same_tokens_as_op_by_op(
    base: Path, paths: dict[str, Path], config: dict[str, int]
) -> None:
    is_tight = "kv_cache_bytes" in config
    max_tokens = [90, 80, 70, 90, 60, 50] if is_tight else [30, 4, 19, 40, 1, 25]
    plain = make_client(base, paths, "abc", **config)
    want = answers(plain, max_tokens)
    user = make_client(base, paths, "abc", **config)
    graphs = use_graph_inputs(user.engine)
    assert answers(user, max_tokens) == want
    assert max(graphs.num_rows) > 1 and len(graphs.num_rows) > 10
    assert (user.engine.stats().num_preemptions > 0) is is_tight


def test_an_adapter_that_takes_a_slot_over_is_the_one_that_answers(
    base: Path, paths: dict[str, Path]
) -> None:
    config = {"max_num_seqs": 2, "max_loras_per_batch": 1, "max_lora_rank": 16}
    want = [make_client(base, paths, "abc").ask(PROMPT, greedy(8), name) for name in "abc"]
    user = make_client(base, paths, "abc", **config)
    use_graph_inputs(user.engine)
    assert [user.ask(PROMPT, greedy(8), name) for name in "abc"] == want
    assert len({tuple(tokens) for tokens in want}) == 3


def test_logits_that_are_not_finite_end_one_request(base: Path, paths: dict[str, Path]) -> None:
    user = make_client(base, paths, "ab")
    use_graph_inputs(user.engine)
    good = user.submit(PROMPT, greedy(12), "a")
    bad = user.submit(PROMPTS[2], greedy(12), "b")
    user.step(3)
    slot = next(a.slot for a in user.engine._scheduler.adapters if "b" in a.names)
    user.engine._runner.lora._scales[slot].fill_(float("nan"))
    user.engine._runner.lora._digests[slot] = "rewritten"
    user.drain()
    assert len(user.tokens(good)) == 12
    assert [type(event).__name__ for event in user.terminal(bad)] == ["Failed"]


@pytest.mark.parametrize(("most", "count"), [(1, 1), (3, 3), (64, 11), (256, 19), (300, 20)])
def test_buckets_rise_to_the_most(most: int, count: int) -> None:
    sizes = bucket_sizes(most)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == most and len(sizes) == count


def test_empty_rows_write_nothing(base: Path, paths: dict[str, Path]) -> None:
    user = make_client(base, paths, "a", max_num_seqs=8)
    graphs = use_graph_inputs(user.engine)
    user.submit(PROMPT, greedy(3), "a")
    user.step(2)
    runner = user.engine._runner
    (sequence,) = user.engine._scheduler
    before = runner.kv.clone()
    work = Work.of(sequence, 1)
    graphs._buckets = (8,)
    with torch.inference_mode():
        graphs.run((work,))
    changed = (runner.kv != before).flatten(4).any(-1).any(0).any(0)
    place = sequence.num_computed
    assert changed.nonzero().tolist() == [[sequence.blocks[place // 16], place % 16]]
