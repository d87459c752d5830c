"""Steps with prompts from the tensors that graphs read, padded: the same tokens as op by op.

On the CPU the step runs op by op from the same tensors; tests with a GPU replay the graphs.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from inference.prompt_graphs import MAX_TOKENS, PromptGraphs, token_buckets
from kernels.attention.chunks import MAX_CHUNKS
from tests.inference.driving import PROMPT, Client, greedy, make_client
from tests.inference.test_decode_graphs import answers, use_graph_inputs

MAX_ANSWERS = [30, 4, 19, 40, 1, 25]


def with_prompt_graphs(
    base: Path, paths: dict[str, Path], max_tokens: int, **config: Any
) -> Client:
    user = make_client(base, paths, "abc", **config)
    engine, runner = user.engine, user.engine._runner
    use_graph_inputs(engine)
    limits = (max_tokens, engine.config.max_num_seqs, engine.max_model_len)
    runner._prompt_graphs = PromptGraphs(
        runner.model, runner.kv, runner.lora, *limits, runner.last_tokens
    )
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
    user = with_prompt_graphs(base, paths, max_tokens, overlap=overlap, **config)
    assert answers(user, MAX_ANSWERS) == want
    counts = user.engine.stats().steps_by_path
    assert counts["prompt graph"] >= 3
    # Longer ones are launched as before.
    assert (counts.get("prefill", 0) > 0) is (max_tokens == 40)


def test_padding_writes_nothing_and_what_was_there_is_not_read(
    base: Path, paths: dict[str, Path]
) -> None:
    user = with_prompt_graphs(base, paths, 512)
    runner = user.engine._runner
    graphs = runner._prompt_graphs
    assert graphs is not None
    graphs._normed.fill_(float("nan"))
    graphs._tables.fill_(-1)
    before = runner.kv.clone()
    request_id = user.submit(PROMPT[:21], greedy(1), "a")
    user.step()
    assert user.tokens(request_id) == make_client(base, paths).ask(PROMPT[:21], greedy(1), "a")
    changed = (runner.kv != before).flatten(4).any(-1).any(0).any(0)
    assert int(changed.sum()) == 21


def test_more_prompts_at_once_than_a_graph_has_room_for(base: Path, paths: dict[str, Path]) -> None:
    """MAX_CHUNKS of them go by the graph, one more does not; all are right."""
    for number, path in ((MAX_CHUNKS, "prompt graph"), (MAX_CHUNKS + 1, "prefill")):
        user = with_prompt_graphs(base, paths, 512, max_num_seqs=20)
        ids = [user.submit(PROMPT[: 4 + i], greedy(2), "ab"[i % 2]) for i in range(number)]
        user.drain()
        assert user.engine.stats().steps_by_path == {path: 1, "graph": 1}
        alone = make_client(base, paths, max_num_seqs=1)
        for i, request_id in enumerate(ids):
            assert user.tokens(request_id) == alone.ask(PROMPT[: 4 + i], greedy(2), "ab"[i % 2])


@pytest.mark.parametrize("most", [7, 32, 512, 600, MAX_TOKENS])
def test_buckets_rise_to_the_most_and_waste_little(most: int) -> None:
    sizes = token_buckets(most)
    assert list(sizes) == sorted(set(sizes)) and sizes[-1] == most
    assert all(after <= 1.26 * before for before, after in pairwise(sizes) if before >= 128)
