"""The house's own two workers and beat, as they are started: long work does not hold up healing."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as house_settings
from pytest_django import DjangoDbBlocker

from adapters.activation import begin_activation
from adapters.models import AdapterVersion
from adapters.publish import upload
from gateway.celery import app
from gateway.embedded import Addresses, beat_child, worker_children
from gateway.supervisor import Child
from tenants.auth import Principal, principal_for_member
from tenants.scope import tenant_scope
from tenants.store import store
from tests import factories
from tests.adapters.conftest import both_files, put_in_quarantine
from tests.adapters.fake_replica import FakeReplica, running
from tests.gateway.live import ROOT_DIR, default_database, default_store, make_database, wait_for
from tests.tiny import make_adapter, make_base

NUM_THREADS = 4
NUM_CHECKS = 12
NUM_LOSSES = 3
# What a lost adapter is promised to be back within; see tests/adapters/test_healing.py.
HEALED_WITHIN_S = 10.0
QUEUES = ("celery", "healing")


def queue_of(child: Child) -> str:
    return child.command[child.command.index("--queues") + 1]


def test_every_task_of_a_lane_exists_and_every_lane_has_a_worker() -> None:
    app.loader.import_default_modules()
    assert set(house_settings.CELERY_TASK_ROUTES) <= set(app.tasks)
    routed = {route["queue"] for route in house_settings.CELERY_TASK_ROUTES.values()}
    children = worker_children(Addresses("redis://", ("http://127.0.0.1:1",)))
    assert {queue_of(child) for child in children} == routed | {app.conf.task_default_queue}
    assert {queue.name for queue in house_settings.CELERY_TASK_QUEUES} == set(QUEUES)


class Lanes:
    """The processes over a database and a store, and a tenant whose adapters they look after."""

    def __init__(self, base: Path, folder: Path, alice: Principal) -> None:
        self._base, self._folder, self._alice = base, folder, alice
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, child: Child, environment: dict[str, str]) -> None:
        with (self._folder / f"{child.name}.log").open("wb") as log:
            self.processes[child.name] = subprocess.Popen(
                child.command,
                cwd=ROOT_DIR,
                env=os.environ | child.environment | environment,
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def upload(self, name: str, seed: int) -> AdapterVersion:
        folder = self._folder / f"files-{seed}"
        files = both_files(make_adapter(folder, self._base, targets=("q_proj",), seed=seed))
        with tenant_scope(self._alice.tenant_id):
            return upload(self._alice, name, put_in_quarantine(files))

    def activate(self, version: AdapterVersion) -> None:
        with tenant_scope(self._alice.tenant_id):
            version.refresh_from_db()
            begin_activation(self._alice, version)

    def num_in(self, state: str) -> int:
        with tenant_scope(self._alice.tenant_id):
            return AdapterVersion.objects.filter(state=state).count()

    @contextlib.contextmanager
    def slow_checks(self) -> Iterator[None]:
        """No child is born any more: whoever checks waits for one."""
        children = Path(f"/proc/{self.processes['worker'].pid}/task").glob("*/children")
        born = [int(word) for path in children for word in path.read_text().split()]
        nursery = next(one for one in born if b"nursery" in command_line(one))
        os.kill(nursery, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(nursery, signal.SIGCONT)


def command_line(process_id: int) -> bytes:
    return Path(f"/proc/{process_id}/cmdline").read_bytes()


@pytest.fixture
def replica() -> Iterator[FakeReplica]:
    with running(FakeReplica()) as replica:
        yield replica


@pytest.fixture
def lanes(
    tmp_path: Path, settings: Any, replica: FakeReplica, django_db_blocker: DjangoDbBlocker
) -> Iterator[Lanes]:
    base, database = make_base(tmp_path / "base"), make_database(tmp_path)
    settings.VAR_DIR, settings.ADAPTER_STORE_DIR = tmp_path, tmp_path / "store"
    environment = {
        "DATABASE_URL": database,
        "SECRET_KEY": settings.SECRET_KEY,
        "MODEL": str(base),
        "ADAPTER_STORE_DIR": str(settings.ADAPTER_STORE_DIR),
    }
    addresses = Addresses(os.environ["REDIS_URL"], (replica.url,))
    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())
        stack.enter_context(default_database(database))
        stack.enter_context(default_store())
        # What other tests queued there.
        store().delete(*QUEUES)
        lanes = Lanes(base, tmp_path, principal_for_member(factories.make_alice().id, "acme"))
        stack.callback(lanes.stop)
        for child in (*worker_children(addresses), beat_child(addresses)):
            lanes.start(child, environment)
        yield lanes
        store().delete(*QUEUES)


def seconds_until(what: str, is_so: Callable[[], bool]) -> float:
    began = time.monotonic()
    wait_for(what, is_so, timeout_s=60)
    return time.monotonic() - began


@pytest.mark.slow
@pytest.mark.case("C77")
def test_slow_checks_do_not_hold_up_healing(lanes: Lanes, replica: FakeReplica) -> None:
    version = lanes.upload("served", seed=1)
    wait_for("the first check", lambda: lanes.num_in("ready"), timeout_s=90)
    lanes.activate(version)
    wait_for("the activation", lambda: lanes.num_in("active"), timeout_s=30)
    delays_s = []
    with lanes.slow_checks():
        for number in range(NUM_CHECKS):
            lanes.upload(f"waiting-{number}", seed=2 + number)
        wait_for("busy threads", lambda: lanes.num_in("validating") == NUM_THREADS)
        for _ in range(NUM_LOSSES):
            replica.adapters.clear()
            delays_s.append(seconds_until("healing", lambda: bool(replica.adapters)))
        assert lanes.num_in("validating") == NUM_THREADS
    print("healed after", *(f"{delay_s:.1f} s" for delay_s in delays_s), file=sys.stderr)
    assert max(delays_s) < HEALED_WITHIN_S
    wait_for("the checks", lambda: lanes.num_in("ready") == NUM_CHECKS, timeout_s=60)
