"""What runs before the first request, here on the CPU: shapes fit, and nothing is left of it."""

from pathlib import Path

import pytest

from inference.warm_up import warm_up
from tests.inference.driving import PROMPT, greedy, make_client


@pytest.mark.parametrize("max_model_len", [8, 24, 256])
@pytest.mark.parametrize("max_batch_tokens", [7, 40, 700])
def test_an_engine_answers_as_if_it_had_not_been(
    base: Path, paths: dict[str, Path], max_batch_tokens: int, max_model_len: int
) -> None:
    config = {"max_batch_tokens": max_batch_tokens, "max_model_len": max_model_len}
    prompt = PROMPT[: max_model_len // 2]
    want = make_client(base, paths, "a", **config).ask(prompt, greedy(4), "a")
    user = make_client(base, paths, "a", **config)
    warm_up(user.engine._runner, max_batch_tokens, max_model_len)
    assert not user.engine._runner.kv.any()
    assert user.ask(prompt, greedy(4), "a") == want
