"""Long greedy answers, each token held against what comes first after all before it.

Comparing two answers as wholes would end at the first near tie, which either may take; so each
place is asked about by itself. There, only a token within NEAR of the best passes.
"""

from collections.abc import Sequence

import torch

from inference.request import Token
from tests.inference.driving import Client, greedy

# Of log-probabilities in fp32: rounding of thousands of sums, far below any real fault.
NEAR = 2e-3
PROMPTS = [[(n * 37 + i * (n + 3)) % 256 for i in range(5 + 7 * n)] for n in range(8)]


def long_answers(user: Client, names: Sequence[str | None], num_tokens: int) -> list[list[int]]:
    """One answer a name, all at once; the books are checked at the end."""
    ids = [
        user.submit(prompt, greedy(num_tokens), name)
        for prompt, name in zip(PROMPTS, names, strict=False)
    ]
    while any(not user.terminal(request_id) for request_id in ids):
        user.engine.step()
    user.engine.check_integrity()
    answers = [user.tokens(request_id) for request_id in ids]
    assert all(len(answer) == num_tokens for answer in answers)
    return answers


def check_by_logits(logits: torch.Tensor, prompt: Sequence[int], answer: Sequence[int]) -> None:
    """logits [T, V] of the prompt and the answer, by another program."""
    rows = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
    chosen = rows.gather(1, torch.tensor(answer)[:, None])[:, 0]
    behind = rows.amax(dim=-1) - chosen
    worst = int(behind.argmax())
    assert behind[worst] < NEAR, f"token {worst} is {behind[worst]:.4f} behind the best"


def check_by_asking(
    user: Client, prompt: Sequence[int], answer: Sequence[int], name: str | None
) -> None:
    """user: of another engine, which is asked for one token at every place of the answer."""
    ids = [
        user.submit([*prompt, *answer[:place]], greedy(1, num_logprobs=2), name)
        for place in range(len(answer))
    ]
    while any(not user.terminal(request_id) for request_id in ids[-1:]):
        user.engine.step()
    for place, (request_id, token) in enumerate(zip(ids, answer, strict=True)):
        first = next(e for e in user.events[request_id] if isinstance(e, Token))
        assert first.logprobs is not None
        near = dict(first.logprobs.top)
        best = max(near.values())
        assert near.get(token, -1e9) > best - NEAR, f"token {place}: {token} of {near}"
