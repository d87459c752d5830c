"""`manage.py serve`: the whole house on this machine, under one supervisor, until Ctrl-C."""

import asyncio
import os
import subprocess
import sys
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import OperationalError

from gateway import embedded
from gateway.embedded import CannotServe
from gateway.house import House, Progress


class Command(BaseCommand):
    help = "Start store, replica, web and worker on this machine; Ctrl-C stops all of them."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        # Keys, hashes and customers' adapters: nobody else on this machine reads them.
        os.umask(0o077)
        try:
            with (
                embedded.locked(settings.VAR_DIR),
                embedded.listen(settings.HOST, settings.PORT) as listener,
            ):
                progress = Progress()
                ensure_base_model(progress)
                migrate()
                progress.say("database migrated")
                asyncio.run(House(progress, listener).live())
        except CannotServe as error:
            sys.exit(f"error: {error}")
        except KeyboardInterrupt:
            sys.exit(130)


def migrate() -> None:
    """Raises CannotServe when there is no database at DATABASE_URL."""
    try:
        call_command("migrate", interactive=False, verbosity=0)
    except OperationalError as error:
        reason = str(error).splitlines()[0]
        raise CannotServe(f"DATABASE_URL: the database cannot be used: {reason}") from error


def ensure_base_model(progress: Progress) -> None:
    """Raises CannotServe when there is none: MODEL= is wrong, or the demo's cannot be fetched."""
    path = settings.BASE_MODEL_PATH
    if (path / "config.json").is_file():
        return
    if path != settings.DEMO_MODEL_PATH:
        raise CannotServe(f"MODEL={path} is not a model directory: it holds no config.json")
    progress.say("fetching the demo's base model, SmolLM2-135M-Instruct (93 MB, once) …")
    command = [sys.executable, "-m", "demo.base_model", str(path)]
    done = subprocess.run(
        command, cwd=settings.ROOT_DIR, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["the base model could not be fetched"]
        raise CannotServe(lines[-1].removeprefix("error: "))
    progress.say("base model converted")
