"""Two thousand tokens a request, several at once, by the tensors that graphs read: all PEFT's."""

from pathlib import Path

import pytest

from tests.inference.driving import make_client
from tests.inference.long_answers import PROMPTS, check_by_asking, check_by_logits, long_answers
from tests.inference.oracle import Oracle
from tests.inference.test_decode_graphs import use_graph_inputs
from tests.tiny import make_adapter, make_base

NUM_TOKENS = 2000
NAMES = [None, "a", "b", "a"]


@pytest.mark.slow
def test_each_token_is_what_peft_says(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", max_position_embeddings=2048)
    paths = {
        name: make_adapter(tmp_path / name, base, r=rank, seed=rank)
        for name, rank in (("a", 8), ("b", 12))
    }
    user = make_client(base, paths, "ab", max_num_seqs=4)
    use_graph_inputs(user.engine)
    answers = long_answers(user, NAMES, NUM_TOKENS)
    oracle = Oracle(base, paths)
    for prompt, name, answer in zip(PROMPTS, NAMES, answers, strict=False):
        check_by_logits(oracle.logits([*prompt, *answer], name), prompt, answer)
    wrong = [*answers[1][:-1], (answers[1][-1] + 1) % 256]
    with pytest.raises(AssertionError, match=f"token {NUM_TOKENS - 1}"):
        check_by_logits(oracle.logits([*PROMPTS[1], *wrong], "a"), PROMPTS[1], wrong)


def test_another_engine_says_the_same_of_each_place(base: Path, paths: dict[str, Path]) -> None:
    user = make_client(base, paths, "ab")
    use_graph_inputs(user.engine)
    (_, answer) = long_answers(user, [None, "a"], 100)
    asked = make_client(base, paths, "ab")
    check_by_asking(asked, PROMPTS[1], answer, "a")
    with pytest.raises(AssertionError, match="token"):
        check_by_asking(asked, PROMPTS[1], answer, "b")
