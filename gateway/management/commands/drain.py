"""`manage.py drain URL`: a replica takes nothing new, ends what it runs; `--resume` undoes it."""

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from adapters.dialects import DIALECTS, split_url
from adapters.dialects.dialect import ReplicaError
from adapters.drain import num_only_here, set_draining
from adapters.models import Replica
from adapters.replica_http import fetch_state
from adapters.residency import read_residency

POLL_INTERVAL_S = 0.5
# Web processes read the word once a second; until then one may still send.
SETTLE_S = 2.0


class Command(BaseCommand):
    help = "Let a replica take nothing new and end what it runs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("url", help="as REPLICA_URLS or the replica itself gave it")
        parser.add_argument("--resume", action="store_true", help="let it take work again")
        parser.add_argument(
            "--wait", type=float, metavar="SECONDS", help="until it runs nothing, at most so long"
        )

    def handle(self, *, url: str, resume: bool, wait: float | None, **options: Any) -> None:
        replica = find(url)
        set_draining(replica.id, not resume, "manage.py drain")
        self.stdout.write(f"{replica.url} {'takes work again' if resume else 'takes nothing new'}")
        if wait is not None and not resume:
            self._wait(replica, wait)

    def _wait(self, replica: Replica, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        time.sleep(min(SETTLE_S, wait_s))
        while rest := what_remains(replica):
            if time.monotonic() > deadline:
                raise CommandError(f"{replica.url} still {rest} after {wait_s:g} s")
            time.sleep(POLL_INTERVAL_S)
        self.stdout.write(f"{replica.url} runs nothing: it may be stopped")


def find(url: str) -> Replica:
    """Of the rows that the house keeps: this command's own REPLICA_URLS may be another's."""
    known = {replica.url: replica for replica in Replica.objects.all()}
    try:
        _, plain = split_url(url)
        return known[plain]
    except (KeyError, ValueError) as error:
        listed = ", ".join(known) or "none"
        raise CommandError(f"{url} is no replica of the fleet, which has {listed}") from error


def what_remains(replica: Replica) -> str:
    """Why it may not be stopped; one that is gone runs nothing."""
    try:
        state = fetch_state(DIALECTS[replica.dialect], replica.url)
    except ReplicaError:
        return ""
    residency = read_residency(state)
    if number := num_only_here(residency.digests):
        return f"is the only one that holds {number} adapter versions"
    return f"runs {residency.load}" if residency.load else ""
