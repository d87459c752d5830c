"""The commands by name. Each asks the house, shows the answer, and ends with a status."""

import sys
from collections.abc import Callable

import typer

from grafthouse import screen
from grafthouse.chatting import chat
from grafthouse.evaluating import evaluate
from grafthouse.failure import Failure
from grafthouse.routing import alias, aliases, canary, unalias
from grafthouse.signing import login, logout, whoami
from grafthouse.versions import (
    activate,
    list_adapters,
    retire,
    rollback,
    upload_version,
    versions,
)
from grafthouse.watching import logs, usage

EPILOG = (
    "Status: 0 done, 1 the house failed, 2 wrong usage, 3 not allowed, 4 not found, "
    "5 refused (a rejected upload, a failed activation, a conflict), 6 unreachable, 7 timed out."
)
app = typer.Typer(
    name="grafthouse",
    help="Adapters from a terminal: upload, measure, activate, roll back, watch.",
    epilog=EPILOG,
    no_args_is_help=True,
    # A traceback with local variables would print keys.
    pretty_exceptions_enable=False,
)
adapters_app = typer.Typer(help="The tenant's adapters.", no_args_is_help=True)
adapters_app.command("list")(list_adapters)

# As --help lists them.
COMMANDS: dict[str, Callable[..., None]] = {
    "login": login,
    "logout": logout,
    "whoami": whoami,
    "versions": versions,
    "upload": upload_version,
    "activate": activate,
    "rollback": rollback,
    "retire": retire,
    "canary": canary,
    "alias": alias,
    "aliases": aliases,
    "unalias": unalias,
    "evaluate": evaluate,
    "logs": logs,
    "usage": usage,
    "chat": chat,
}
for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(adapters_app, name="adapters")


def main() -> None:
    try:
        app()
    except Failure as failure:
        screen.fail(str(failure))
        sys.exit(int(failure.code))
