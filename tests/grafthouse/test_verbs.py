"""What a target may be, which wishes exclude each other, and what is shown of an answer."""

import inspect
from typing import Any

import pytest
import typer

from grafthouse import evaluating, options, routing
from grafthouse.cli import COMMANDS
from grafthouse.client import alias_path
from grafthouse.failure import Exit, Failure


def test_it_works() -> None:
    assert options.parsed("support-bot") == ("support-bot", None)
    assert options.parsed("support-bot@12") == ("support-bot", 12)
    assert alias_path("a/../b") == "aliases/a%2F..%2Fb/"
    assert routing.pointed({"adapter": "bot", "version": 3}) == "bot@3"
    assert routing.pointed({"adapter": "bot", "version": None}) == "bot"


@pytest.mark.parametrize("target", ["", "@3", "bot@", "bot@0", "bot@x", "bot@-1", "bot@1@2"])
def test_a_target_that_is_none_is_wrong_usage(target: str) -> None:
    with pytest.raises(Failure, match="expected ADAPTER or ADAPTER@VERSION") as caught:
        options.parsed(target)
    assert caught.value.code == Exit.USAGE


def test_an_evaluation_is_of_a_version() -> None:
    with pytest.raises(Failure, match="bot: expected ADAPTER@VERSION") as caught:
        evaluating.evaluate("bot")
    assert caught.value.code == Exit.USAGE


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ((3, None, False, False), "a VERSION and its PERCENT"),
        ((3, 10, True, False), "or --stop"),
        ((None, None, True, True), "or --stop"),
    ],
)
def test_a_canary_is_one_wish(wish: tuple[Any, ...], said: str) -> None:
    with pytest.raises(Failure, match=said) as caught:
        routing.require_one_wish(*wish)
    assert caught.value.code == Exit.USAGE


def test_a_canary_shows_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"num_errors": 0, "prompt_tokens": 70, "completion_tokens": 30}
    found = {
        "version": 3,
        "percent": 10,
        "state": "running",
        "error": "",
        "active_figures": {"number": 2, "num_requests": 90, **figures},
        "canary_figures": {"number": 3, "num_requests": 12, **figures},
    }
    routing.show_canary("bot", found, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "bot@3 is a canary for 10 % of end users, running"
    assert [line.split()[:2] for line in lines[2:]] == [["2", "90"], ["3", "12"]]
    failed = found | {"state": "failed", "error": "no room\x1b[2J"}
    with pytest.raises(typer.Exit) as caught:
        routing.show_canary("bot", failed, as_json=False)
    assert caught.value.exit_code == Exit.REFUSED
    assert "no room\\x1b[2J" in capsys.readouterr().out


def test_an_evaluation_is_a_table_of_losses(capsys: pytest.CaptureFixture[str]) -> None:
    contenders = [
        {"name": "base", "loss": 2.0, "perplexity": 7.389, "num_tokens": 40},
        {"name": "adapter", "loss": 0.25, "perplexity": 1.284, "num_tokens": 40},
    ]
    found: dict[str, Any] = {"id": "ev-1", "status": "completed", "error": ""}
    found["results"] = {"contenders": contenders}
    evaluating.show_evaluation("bot@3", found, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "bot@3: evaluation ev-1 is completed"
    assert lines[3].split() == ["adapter", "0.2500", "1.28", "40"]
    with pytest.raises(typer.Exit) as caught:
        failed = {"status": "failed", "error": "no replica", "results": None}
        evaluating.show_evaluation("bot@3", found | failed, as_json=False)
    assert caught.value.exit_code == Exit.REFUSED


def test_scripts_get_json_from_every_command() -> None:
    """But from those that only a person answers."""
    plain = {name for name, verb in COMMANDS.items() if "as_json" not in signature_of(verb)}
    assert plain == {"login", "logout"}


def signature_of(verb: Any) -> Any:
    return inspect.signature(verb).parameters
