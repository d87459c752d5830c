"""One question to a model."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from grafthouse import screen
from grafthouse.options import AsJson, open_house


def chat(
    model: Annotated[str, typer.Argument(help="An adapter, adapter@version, or the base.")],
    message: Annotated[str, typer.Argument(help="- reads stdin.")],
    system: Annotated[str, typer.Option(help="A system prompt.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1)] = 256,
    temperature: Annotated[float | None, typer.Option(min=0.0, max=2.0)] = None,
    as_json: AsJson = False,
) -> None:
    """One question, its answer as it is made."""
    text = sys.stdin.read() if message == "-" else message
    turns = [{"role": "system", "content": system}] if system else []
    body: dict[str, Any] = {
        "model": model,
        "messages": [*turns, {"role": "user", "content": text}],
        "max_tokens": max_tokens,
        **({} if temperature is None else {"temperature": temperature}),
    }
    with open_house() as house:
        if as_json:
            return screen.show_json(house.call("POST", "/v1/chat/completions", json=body))
        options = {"stream": True, "stream_options": {"include_usage": True}}
        write_answer(house.stream("/v1/chat/completions", body | options))


def write_answer(chunks: Iterator[dict[str, Any]]) -> None:
    served = ""
    for chunk in chunks:
        served = chunk["model"]
        for choice in chunk["choices"]:
            sys.stdout.write(screen.plain(choice["delta"].get("content") or ""))
            sys.stdout.flush()
        if used := chunk.get("usage"):
            prompt, completion = used["prompt_tokens"], used["completion_tokens"]
            sys.stdout.write("\n")
            sys.stdout.flush()
            screen.note(f"{served}: {prompt} prompt tokens, {completion} completion tokens")
