"""Compiling and masking beside the loop: what is slow holds up nobody but who asked for it."""

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from inference import grammar, grammar_matcher
from inference.errors import ErrorCode
from inference.request import Constraint, SamplingParams
from tests.inference.constraining import error_of, held_to, make_patient, text_of
from tests.inference.driving import PROMPT, Client


@pytest.fixture(scope="module")
def client(base: Path, paths: dict[str, Path]) -> Client:
    return make_patient(base, paths)


def test_a_text_is_compiled_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    before = grammar._compiled

    def counted(compiler: Any, constraint: Constraint) -> Any:
        compiled.append(constraint.text)
        return before(compiler, constraint)

    monkeypatch.setattr(grammar, "_compiled", counted)
    names = [
        client.submit(PROMPT[:5], held_to(Constraint("regex", "[xy]{3}"), seed=seed))
        for seed in range(4)
    ]
    client.drain()
    assert all(re.fullmatch("[xy]{3}", text_of(client.tokens(name))) for name in names)
    client.ask(PROMPT[:5], held_to(Constraint("regex", "[xy]{3}")))
    assert compiled == ["[xy]{3}"]


def test_the_cache_is_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "MAX_CACHED", 3)
    for number in range(6):
        client.ask(PROMPT[:5], held_to(Constraint("regex", f"q{number}")))
    assert len(client.engine._grammars._entries) <= 3
    assert text_of(client.ask(PROMPT[:5], held_to(Constraint("regex", "q0")))) == "q0"


class Gate:
    """A compiler that compiles what it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        before = grammar._compiled

        def slowly(compiler: Any, constraint: Constraint) -> Any:
            if constraint.text.startswith("slow"):
                self.opened.wait(60)
            return before(compiler, constraint)

        monkeypatch.setattr(grammar, "_compiled", slowly)


def test_others_go_on_while_a_grammar_is_compiled(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    slow = client.submit(PROMPT[:5], held_to(Constraint("regex", "slow1")), "a")
    left = client.submit(PROMPT[:5], held_to(Constraint("regex", "slow1")), "b")
    free = client.submit(PROMPT[:5], SamplingParams(20, ignore_eos=True), "b")
    quick = client.submit(PROMPT[:5], held_to(Constraint("regex", "quick")))
    deadline = time.monotonic() + 30
    while not (client.terminal(free) and client.terminal(quick)):
        client.step()
        assert time.monotonic() < deadline
    assert not client.events[slow]
    client.engine.abort(left)
    client.step()
    assert len(client.terminal(left)) == 1
    gate.opened.set()
    client.drain()
    assert text_of(client.tokens(slow)) == "slow1"


def test_a_compilation_past_its_time_is_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there are threads: others take their place, and come back to the old number."""
    gate = Gate(monkeypatch)
    monkeypatch.setattr(grammar, "MAX_COMPILE_S", 0.2)
    for number in range(grammar.NUM_COMPILERS):
        failed = error_of(client, Constraint("regex", f"slow{number + 2}"))
        assert failed.code is ErrorCode.INVALID_REQUEST
        assert "takes longer" in failed.message
    monkeypatch.setattr(grammar, "MAX_COMPILE_S", 60.0)
    assert text_of(client.ask(PROMPT[:5], held_to(Constraint("regex", "after")))) == "after"
    gate.opened.set()
    deadline = time.monotonic() + 30
    while client.engine._grammars._num_lost:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # Refused for its time, it stays refused.
    assert "takes longer" in error_of(client, Constraint("regex", "slow2")).message


def test_a_late_mask_holds_up_its_own_row_only(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is computed again until its mask is there; the tokens are those it has in time."""
    params = held_to(Constraint("regex", "[a-z]{20}"), seed=9)
    in_time = client.ask(PROMPT[:5], params)
    before = grammar_matcher.Matcher._move

    def slowly(matcher: Any, token_id: int | None) -> Any:
        time.sleep(0.05 if token_id is not None else 0.0)
        return before(matcher, token_id)

    monkeypatch.setattr(grammar_matcher.Matcher, "_move", slowly)
    late = client.submit(PROMPT[:5], params)
    free = client.submit(PROMPT[:5], SamplingParams(12, ignore_eos=True))
    while not client.terminal(free):
        client.step()
    assert not client.terminal(late)
    client.drain()
    assert client.tokens(late) == in_time
    monkeypatch.setattr(grammar_matcher, "MAX_MASK_S", 0.02)
    failed = error_of(client, Constraint("regex", "[a-z]{20}"))
    assert "takes longer" in failed.message


@pytest.mark.slow
def test_an_ambiguous_grammar_ends_alone(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its masks take longer with every token, seconds in the end; others' tokens do not wait."""
    monkeypatch.setattr(grammar_matcher, "MAX_MASK_S", 0.1)
    hostile = "root ::= e\ne ::= e e | e e e | e e e e | [a-z ]"
    name = client.submit(PROMPT[:5], held_to(Constraint("grammar", hostile), 400, min_tokens=400))
    while not client.tokens(name) and not client.terminal(name):
        client.step()
    longest_s = 0.0
    while not client.terminal(name):
        started = time.monotonic()
        free = client.submit(PROMPT[:5], SamplingParams(8, ignore_eos=True), "a")
        while not client.terminal(free):
            client.step()
        longest_s = max(longest_s, time.monotonic() - started)
    (end,) = client.terminal(name)
    assert end.message.endswith("takes longer than 0 s.")  # type: ignore[union-attr]
    # Eight tokens of a tiny model; the masks alone would take longer.
    assert longest_s < 5.0
