"""A canary as clients meet it: the official client, a real web process, two fake replicas."""

import openai
import pytest

from adapters.access import resolve
from adapters.canary import confirm_canary, fail_canary, set_canary, stop_canary
from adapters.models import Adapter, AdapterVersion, Canary, CanaryState, VersionState
from adapters.share import pick
from tenants.audit import system
from tenants.auth import authenticate_key
from tenants.keys import create_key
from tenants.models import UsageRecord
from tenants.scope import tenant_scope
from tests.gateway.conftest import Customer, Stack
from tests.gateway.live import wait_for

MESSAGES = [{"role": "user", "content": "Hi"}]
USERS = [f"user-{number}" for number in range(30)]


@pytest.fixture
def both(stack: Stack, acme: Customer) -> tuple[str, str]:
    """The digests of support-bot's active version 1 and of its version 2, on both replicas."""
    second = stack.activate(acme, "support-bot", 2)
    with tenant_scope(acme.tenant.id):
        rows = AdapterVersion.objects
        rows.filter(number=2).update(state=VersionState.READY, activated_at=None)
        rows.filter(number=1).update(state=VersionState.ACTIVE, superseded_at=None)
        first = rows.get(number=1)
        Adapter.objects.update(active_version=first)
    return first.digest, second


def set_weight(customer: Customer, percent: int) -> None:
    """As the API does, and then the reconciler, once a replica has reported the digest."""
    with tenant_scope(customer.tenant.id):
        version = AdapterVersion.objects.select_related("adapter").get(number=2)
        found = set_canary(system(customer.tenant.id), version, percent)
        if found.state == CanaryState.LOADING:
            assert confirm_canary(found)


def served(client: openai.OpenAI, user: str | None = None, model: str = "support-bot") -> str:
    """The digest that answered, by which the answer also names its version."""
    options = {} if user is None else {"user": user}
    answer = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_tokens=1,
        **options,
    )
    assert answer.system_fingerprint is not None
    number = 1 if answer.model == "support-bot@1" else 2
    assert answer.model == f"support-bot@{number}"
    return answer.system_fingerprint


def expected(customer: Customer, end_user: str) -> str | None:
    return pick(resolve(authenticate_key(customer.api_key), "support-bot"), end_user).digest


def rows_of(customer: Customer) -> list[UsageRecord]:
    with tenant_scope(customer.tenant.id):
        return list(UsageRecord.objects.all())


def push_of(customer: Customer, user: str, digest: str) -> None:
    """The web process hears of a change within a second."""
    client = customer.client()
    wait_for("the push", lambda: served(client, user) == digest, timeout_s=1.0)


def test_it_works(acme: Customer, both: tuple[str, str]) -> None:
    """The same users in this process and in the web process, and those who are in stay in."""
    first, second = both
    client = acme.client()
    assert {served(client, user) for user in USERS} == {first}
    inside: set[str] = set()
    for percent in (20, 60):
        set_weight(acme, percent)
        push_of(
            acme, next(user for user in USERS if expected(acme, f"user {user}") == second), second
        )
        found = {user: served(client, user) for user in USERS}
        assert found == {user: expected(acme, f"user {user}") for user in USERS}
        now = {user for user, digest in found.items() if digest == second}
        assert inside < now < set(USERS)
        inside = now


def test_it_counts_by_version(acme: Customer, both: tuple[str, str]) -> None:
    set_weight(acme, 20)
    push_of(acme, "user-9", both[1])
    before = len(acme.usage(len(rows_of(acme))))
    client = acme.client()
    for user in ("user-9", "user-19", "user-4"):
        served(client, user)
    rows = acme.usage(before + 3)[before:]
    assert [(row.model, row.digest) for row in rows] == [
        ("support-bot@2", both[1]),
        ("support-bot@1", both[0]),
        ("support-bot@1", both[0]),
    ]


def test_a_named_version_and_lora_path_are_no_lottery(
    acme: Customer, both: tuple[str, str]
) -> None:
    first, second = both
    set_weight(acme, 99)
    push_of(acme, "user-9", second)
    client = acme.client()
    assert {served(client, user, "support-bot@1") for user in USERS} == {first}
    assert {served(client, user, "support-bot@2") for user in USERS} == {second}


def test_without_a_user_the_key_decides(acme: Customer, both: tuple[str, str]) -> None:
    """One key, one version; safety_identifier comes before user, as OpenAI replaced it."""
    set_weight(acme, 50)
    push_of(acme, "user-9", both[1])
    for _ in range(3):
        key = create_key(system(acme.tenant.id), "more", ["inference"])
        client = acme.web.client(key.raw)
        assert {served(client) for _ in range(2)} == {expected(acme, f"key {key.row.id}")}
    answer = acme.client().chat.completions.create(
        model="support-bot",
        messages=MESSAGES,
        user="user-19",
        extra_body={"safety_identifier": "user-9"},
    )
    assert answer.system_fingerprint == both[1]


def test_a_lost_canary_is_waited_for_and_never_replaced(
    stack: Stack, acme: Customer, both: tuple[str, str]
) -> None:
    """Its end users get a 503 that says so, as those of an active version would; others nothing."""
    first, second = both
    set_weight(acme, 20)
    push_of(acme, "user-9", second)
    for replica in stack.replicas:
        replica.digests.discard(second)
    client = acme.client()

    def is_waited_for() -> bool:
        try:
            assert served(client, "user-9") == second
        except openai.InternalServerError as error:
            return error.code == "adapter_loading"
        return False

    wait_for("the poll", is_waited_for)
    assert served(client, "user-19") == first
    with tenant_scope(acme.tenant.id):
        fail_canary(Canary.objects.select_related("adapter", "version__adapter").get(), "gone")
    push_of(acme, "user-9", first)


def test_stopped_everyone_gets_the_active_version(acme: Customer, both: tuple[str, str]) -> None:
    first, second = both
    set_weight(acme, 99)
    push_of(acme, "user-9", second)
    with tenant_scope(acme.tenant.id):
        stop_canary(system(acme.tenant.id), Adapter.objects.get(name="support-bot"))
    push_of(acme, "user-9", first)
    client = acme.client()
    assert {served(client, user) for user in USERS[:5]} == {first}
