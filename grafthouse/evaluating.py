"""A version measured on its adapter's eval set."""

import time
from typing import Annotated, Any

import typer

from grafthouse import screen
from grafthouse.client import House, adapter_path
from grafthouse.failure import Exit, Failure
from grafthouse.options import AsJson, NoWait, Timeout, open_house, parsed

POLL_INTERVAL_S = 0.3
ENDED = frozenset({"completed", "failed"})


def evaluate(
    target: Annotated[str, typer.Argument(metavar="ADAPTER@VERSION")],
    system: Annotated[
        str | None, typer.Option(help="What the base is told; default: the profile's prompt.")
    ] = None,
    no_wait: NoWait = False,
    timeout: Timeout = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Measure a version beside the base model, and show each one's loss."""
    name, number = parsed(target)
    if number is None:
        raise Failure(f"{target}: expected ADAPTER@VERSION.", Exit.USAGE)
    body = {} if system is None else {"system_prompt": system}
    with open_house() as house:
        path = adapter_path(name, "versions", number, "evaluations")
        found = house.ask("POST", path, json=body)
        if not no_wait:
            found = await_end(house, f"{path}{found['id']}/", target, timeout)
    show_evaluation(target, found, as_json)


def await_end(house: House, path: str, target: str, timeout_s: float) -> dict[str, Any]:
    """The evaluation once it has ended. A house that restarts is waited for."""
    deadline = time.monotonic() + timeout_s
    with screen.err.status(screen.plain(f"evaluating {target}")) as shown:
        while time.monotonic() < deadline:
            try:
                found = dict(house.ask("GET", path))
            except Failure as failure:
                if failure.code not in (Exit.UNREACHABLE, Exit.FAILED):
                    raise
            else:
                if found["status"] in ENDED:
                    return found
                steps = f"{found['num_done']} of {found['num_steps']} steps"
                shown.update(screen.plain(f"evaluating {target}: {found['status']}, {steps}"))
            time.sleep(POLL_INTERVAL_S)
    raise Failure(f"{target} is still being evaluated after {timeout_s:g} s.", Exit.TIMED_OUT)


def show_evaluation(target: str, found: dict[str, Any], as_json: bool) -> None:
    """REFUSED when it failed; a loss that is worse is an answer like any other."""
    if as_json:
        screen.show_json(found)
    else:
        screen.say(f"{target}: evaluation {found['id']} is {found['status']}")
        if found["error"]:
            screen.say(found["error"], "red")
        if found["results"]:
            screen.table(["WHO", ">LOSS", ">PERPLEXITY", ">TOKENS"], losses(found["results"]))
    if found["status"] == "failed":
        raise typer.Exit(Exit.REFUSED)


def losses(results: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (one["name"], f"{one['loss']:.4f}", f"{one['perplexity']:.2f}", one["num_tokens"])
        for one in results["contenders"]
    ]
