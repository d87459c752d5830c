"""What one replica makes of an eval set: losses, and answers to the golden prompts. No database.

A loss is the mean negative log-likelihood of the completions' tokens: of a conversation the last
turn up to the token that ends it, of a prompt what follows it. All contenders are asked the same,
by token ids, and every answer has to name the digest that it was asked for.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from adapters.dialects.dialect import Call, ReplicaError
from adapters.replica_http import ask

BASE, PROMPTED, ADAPTER = "base", "base_with_prompt", "adapter"
# Of one call: short enough for other requests to have their turn, and for a heartbeat.
MAX_CALL_TOKENS = 2048
MAX_CALL_PROMPTS = 16
MAX_ANSWER_TOKENS = 128
CALL_TIMEOUT_S = 300.0

Example = Mapping[str, Any]


class NotScorable(Exception):
    """The eval set, or what the replica said, is at fault: asking again changes nothing."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Contender:
    """digest None: the base. system_prompt: for conversations that have none; of the base, also in
    front of a plain prompt.
    """

    name: str
    digest: str | None
    system_prompt: str = ""

    def messages(self, example: Example) -> list[dict[str, str]]:
        turns: list[dict[str, str]] = example["messages"]
        has_own = any(turn["role"] in ("system", "developer") for turn in turns)
        if has_own or not self.system_prompt:
            return turns
        return [{"role": "system", "content": self.system_prompt}, *turns]

    def prompt(self, example: Example) -> str:
        prompt: str = example["prompt"]
        # A version's profile leaves plain prompts alone, and so does its turn here.
        if self.digest is not None or not self.system_prompt:
            return prompt
        return f"{self.system_prompt}\n\n{prompt}"


@dataclass(frozen=True)
class Text:
    """token_ids of prompt and completion, which begins at start."""

    token_ids: tuple[int, ...]
    start: int


@dataclass
class Judge:
    """One replica. model: the base's name there; end_ids: tokens that end a turn; on_step: called
    after every step of num_steps. Counts what it cost.
    """

    url: str
    model: str
    headers: Mapping[str, str]
    cache_salt: str
    end_ids: frozenset[int]
    on_step: Callable[[], None]
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    _texts: dict[str, Text] = field(default_factory=dict)

    def results(
        self, examples: Sequence[Example], contenders: Sequence[Contender]
    ) -> dict[str, Any]:
        """Raises ReplicaError, or NotScorable."""
        scored = [self._score(contender, examples) for contender in contenders]
        golden = [
            self._golden(example, contenders) for example in examples if example.get("golden")
        ]
        usage = {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
        }
        return {"contenders": scored, "golden": golden, "usage": usage}

    def _score(self, contender: Contender, examples: Sequence[Example]) -> dict[str, Any]:
        texts = [self._text(contender, example) for example in examples]
        total = 0.0
        for batch in _batches(texts):
            total -= sum(self._logprobs(contender, batch))
            for _ in batch:
                self.on_step()
        num_tokens = sum(len(text.token_ids) - text.start for text in texts)
        loss = total / num_tokens
        return {
            "name": contender.name,
            "digest": contender.digest,
            "system_prompt": contender.system_prompt,
            "loss": loss,
            # Of a model that is quite wrong it may be beyond any float.
            "perplexity": math.exp(min(loss, 700.0)),
            "num_tokens": num_tokens,
        }

    def _logprobs(self, contender: Contender, batch: Sequence[Text]) -> list[float]:
        """The completions', one sum a text."""
        body = {"prompt": [text.token_ids for text in batch], "max_tokens": 0}
        answer = self._ask(contender, "/v1/completions", body | {"echo": True, "logprobs": 0})
        found = []
        for text, choice in zip(batch, _choices(answer, len(batch)), strict=True):
            values = ((choice.get("logprobs") or {}).get("token_logprobs") or [])[text.start :]
            if len(values) != len(text.token_ids) - text.start or not all(map(_is_number, values)):
                raise ReplicaError("it did not score every token of a prompt", is_final=True)
            found.append(sum(values))
        return found

    def _golden(self, example: Example, contenders: Sequence[Contender]) -> dict[str, Any]:
        answers = {}
        for contender in contenders:
            answers[contender.name] = self._answer(contender, example)
            self.on_step()
        if "messages" in example:
            shown = {"prompt": _shown(example["messages"][:-1])}
            shown["expected"] = example["messages"][-1]["content"]
        else:
            shown = {"prompt": example["prompt"], "expected": example["completion"]}
        return {"line": example["line"], **shown, "answers": answers}

    def _answer(self, contender: Contender, example: Example) -> str:
        """Greedy."""
        limits: dict[str, Any] = {"max_tokens": MAX_ANSWER_TOKENS, "temperature": 0}
        if "messages" in example:
            body = limits | {"messages": contender.messages(example)[:-1]}
            (choice,) = _choices(self._ask(contender, "/v1/chat/completions", body), 1)
            return str((choice.get("message") or {}).get("content") or "")
        body = limits | {"prompt": contender.prompt(example)}
        (choice,) = _choices(self._ask(contender, "/v1/completions", body), 1)
        return str(choice.get("text") or "")

    def _text(self, contender: Contender, example: Example) -> Text:
        """The whole is tokenised as it is; the completion begins where it leaves the prompt's."""
        if "messages" in example:
            turns = contender.messages(example)
            opened: dict[str, Any] = {"messages": turns[:-1]}
            closed = {"messages": turns, "add_generation_prompt": False}
        else:
            opened = {"prompt": contender.prompt(example)}
            closed = {"prompt": opened["prompt"] + example["completion"]}
        key = repr(closed)
        if key not in self._texts:
            before, whole = self._tokens(opened, example), self._tokens(closed, example)
            self._texts[key] = self._split(before, whole, example)
        return self._texts[key]

    def _split(self, before: list[int], whole: list[int], example: Example) -> Text:
        pairs = zip(before, whole, strict=False)
        start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        ends = [place for place in range(start, len(whole)) if whole[place] in self.end_ids]
        # What a template writes behind the end of a turn no model has to know.
        whole = whole[: ends[0] + 1] if ends else whole
        if not 0 < start < len(whole):
            message = f"line {example['line']}: no token of its completion stands behind a prompt"
            raise NotScorable("nothing_to_score", message)
        return Text(tuple(whole), start)

    def _tokens(self, body: Mapping[str, Any], example: Example) -> list[int]:
        call = Call("POST", "/tokenize", {"model": self.model, **body})
        try:
            found = ask(self.url, call, CALL_TIMEOUT_S, self.headers)
        except ReplicaError as error:
            if not error.is_final:
                raise
            raise NotScorable("not_rendered", f"line {example['line']}: {error}") from error
        tokens, limit = found.get("tokens"), found.get("max_model_len")
        if not isinstance(tokens, list) or not isinstance(limit, int):
            raise ReplicaError("/tokenize answered without tokens", is_final=True)
        if len(tokens) > limit:
            message = f"line {example['line']}: {len(tokens)} tokens; the context holds {limit}"
            raise NotScorable("too_long", message)
        return tokens

    def _ask(self, contender: Contender, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        named = {"model": contender.digest or self.model, "cache_salt": self.cache_salt}
        answer = ask(self.url, Call("POST", path, {**body, **named}), CALL_TIMEOUT_S, self.headers)
        wanted, used = contender.digest or "base", answer.get("system_fingerprint")
        if used != wanted:
            message = f"{contender.name} was asked of {wanted}, and {str(used)[:64]} answered"
            raise NotScorable("digest_mismatch", message)
        usage = answer.get("usage") or {}
        self.num_prompt_tokens += int(usage.get("prompt_tokens") or 0)
        self.num_completion_tokens += int(usage.get("completion_tokens") or 0)
        return answer


def num_steps(examples: Sequence[Example], num_contenders: int) -> int:
    num_golden = sum(bool(example.get("golden")) for example in examples)
    return (len(examples) + num_golden) * num_contenders


def _batches(texts: Sequence[Text]) -> Iterator[list[Text]]:
    """In order; a text that is longer than a call should be goes alone."""
    batch: list[Text] = []
    for text in texts:
        size = sum(len(one.token_ids) for one in (*batch, text))
        if batch and (size > MAX_CALL_TOKENS or len(batch) == MAX_CALL_PROMPTS):
            yield batch
            batch = []
        batch.append(text)
    yield batch


def _choices(answer: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    found = answer.get("choices")
    if not isinstance(found, list) or len(found) != number:
        raise ReplicaError("it did not answer with every choice", is_final=True)
    return sorted(found, key=lambda choice: int(choice["index"]))


def _is_number(value: object) -> bool:
    return isinstance(value, float | int) and math.isfinite(value)


def _shown(turns: Sequence[Mapping[str, str]]) -> str:
    """A conversation as a reader sees it: one turn is its text."""
    if len(turns) == 1:
        return turns[0]["content"]
    return "\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)
