"""Every ending of a request, by every way in: opened before its first byte, settled once, and the
ledger, the counters and the metrics say what the replica says that it produced.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import openai
import pytest
import requests
from django.utils import timezone

from adapters.engine_usage import attempts_of
from tenants.models import UsageRecord
from tenants.orphans import settle_orphans
from tenants.scope import tenant_scope
from tenants.store import store
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import CACHED_TOKENS, PROMPT_TOKENS, Behaviour, FakeReplica
from tests.gateway.live import start_web, wait_for
from tests.gateway.test_websocket import chat_socket, hang_up, hear, say

BODY = {"model": "support-bot", "messages": [{"role": "user", "content": "Hi"}]}
# In this order: a client that left a socket is given up before its replica's silence is.
LIMITS = {"RESUME_WINDOW_S": "1", "UPSTREAM_IDLE_TIMEOUT_S": "3"}
NUM_TOKENS = len(Behaviour().tokens)
COUNTED = (
    "grafthouse_tokens_total",
    "grafthouse_lost_tokens_total",
    "grafthouse_generations_total",
)
LEAVE, CANCEL = "leave", "cancel"


@dataclass(frozen=True)
class Ending:
    """behaviour: of the replicas that the request meets first, other: of the rest. act: of the
    client, once so many tokens were sent as the row must have; None, if it reads on. num_tokens:
    None where nothing is billed. num_lost: produced, and billed to nobody.
    """

    behaviour: Behaviour
    status: str
    num_tokens: int | None
    error_code: str = ""
    act: str | None = None
    num_replicas: int = 2
    other: Behaviour = field(default_factory=Behaviour)
    num_lost: int = 0
    ways: tuple[str, ...] = ("sse", "plain", "socket")


def refusal(code: str) -> dict[str, Any]:
    return {"message": "no", "type": "server_error", "param": None, "code": code}


def holding(num_tokens: int) -> Behaviour:
    return Behaviour(hold_after=num_tokens)


DEAD_AT_ONCE = Behaviour(die_after=0, token_interval_s=0.05)
DEAD_IN_THE_MIDDLE = Behaviour(die_after=3, token_interval_s=0.05)
FRAMES, PLAIN = ("sse", "socket"), ("plain",)
SILENT = Behaviour(silent_s=60.0)
ENDINGS = {
    "it finishes": Ending(Behaviour(), "finished", NUM_TOKENS),
    "the client leaves before the first byte": Ending(SILENT, "cancelled", None, act=LEAVE),
    "the client leaves in the middle": Ending(holding(3), "cancelled", 3, act=LEAVE),
    "the client leaves before [DONE]": Ending(
        holding(NUM_TOKENS), "cancelled", NUM_TOKENS, act=LEAVE
    ),
    "the client cancels": Ending(holding(3), "cancelled", 3, act=CANCEL, ways=("socket",)),
    "the client cancels before the first byte": Ending(
        SILENT, "cancelled", None, act=CANCEL, ways=("socket",)
    ),
    "the replica fails": Ending(
        Behaviour(error_after=2), "failed", 2, "non_finite_logits", ways=FRAMES
    ),
    "the replica fails before the answer is whole": Ending(
        Behaviour(error_after=2), "failed", None, "non_finite_logits", num_lost=2, ways=PLAIN
    ),
    "the replica dies before its first token": Ending(
        DEAD_AT_ONCE, "finished", NUM_TOKENS, num_replicas=1
    ),
    "all replicas do": Ending(DEAD_AT_ONCE, "failed", None, "no_replica"),
    "the replica dies": Ending(DEAD_IN_THE_MIDDLE, "failed", 3, "replica_failed", ways=FRAMES),
    "the replica dies before the answer is whole": Ending(
        DEAD_IN_THE_MIDDLE, "finished", NUM_TOKENS, num_replicas=1, num_lost=3, ways=PLAIN
    ),
    "all replicas die before it is": Ending(
        DEAD_IN_THE_MIDDLE, "failed", None, "no_replica", num_lost=6, ways=PLAIN
    ),
    "the replica falls silent": Ending(holding(3), "failed", 3, "replica_failed", ways=FRAMES),
    "the replica falls silent before the answer is whole": Ending(
        holding(3), "finished", NUM_TOKENS, num_replicas=1, num_lost=3, ways=PLAIN
    ),
    "the client leaves while another replica starts over": Ending(
        DEAD_IN_THE_MIDDLE,
        "cancelled",
        2,
        act=LEAVE,
        num_replicas=1,
        other=holding(2),
        num_lost=3,
        ways=PLAIN,
    ),
    "the replica refuses": Ending(
        Behaviour(status=400, error=refusal("bad_schema")), "failed", None, "bad_schema"
    ),
    "all replicas are busy": Ending(
        Behaviour(status=503, error=refusal("overloaded")), "failed", None, "overloaded"
    ),
}
CASES = [(name, way) for name, ending in ENDINGS.items() for way in ending.ways]


@dataclass
class Scene:
    stack: Stack
    customer: Customer
    num_before: int = 0
    metrics_before: dict[str, float] = field(default_factory=dict)

    def num_produced(self) -> int:
        return sum(one.num_tokens for one in self.stack.replicas) - self.num_before

    def is_under_way(self, num_tokens: int | None) -> bool:
        """The replica has sent all that it will, and a row was open before."""
        is_running = any(one.num_running for one in self.stack.replicas)
        return is_running and self.num_produced() == (num_tokens or 0)

    def metrics(self) -> dict[str, float]:
        found = {}
        for line in requests.get(f"{self.stack.web.url}/metrics", timeout=30).text.splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith(COUNTED):
                found[name] = float(value)
        return found

    def gained(self, name: str) -> float:
        return self.metrics().get(name, 0) - self.metrics_before.get(name, 0)

    def row(self) -> UsageRecord | None:
        with tenant_scope(self.customer.tenant.id):
            return UsageRecord.objects.first()


@pytest.fixture(scope="module")
def stack_of_endings(running_stack: Stack) -> Iterator[Stack]:
    replicas = [FakeReplica(), FakeReplica()]
    urls = [one.url for one in replicas]
    web = start_web(running_stack.folder, running_stack.database_url, urls, **LIMITS)
    yield replace(running_stack, web=web, replicas=replicas)
    web.stop()
    for one in replicas:
        one.close()


@pytest.fixture
def scene(stack: Stack, stack_of_endings: Stack) -> Iterator[Scene]:
    for one in stack_of_endings.replicas:
        one.behaviour = Behaviour()
    wait_for("the replicas", lambda: requests.get(f"{stack_of_endings.web.url}/readyz").ok)
    customer = stack_of_endings.make_customer(tokens_per_minute=10**6, monthly_budget=1000)
    stack_of_endings.activate(customer, "support-bot")
    scene = Scene(stack_of_endings, customer)
    scene.num_before = scene.num_produced()
    scene.metrics_before = scene.metrics()
    yield scene
    stack_of_endings.web.close_clients()


def read_sse(scene: Scene, ending: Ending) -> None:
    stream = requests.post(
        f"{scene.stack.web.url}/v1/chat/completions",
        json=BODY | {"stream": True},
        headers={"authorization": f"Bearer {scene.customer.api_key}"},
        stream=True,
        timeout=30,
    )
    seen = 0
    for line in stream.iter_lines():
        if not line.startswith(b"data: {"):
            continue
        frame = json.loads(line[6:])
        delta = frame["choices"][0]["delta"] if frame.get("choices") else {}
        if delta.get("content"):
            seen += 1
            assert scene.row() is not None, "a byte came before the row was open"
        if ending.act and seen == ending.num_tokens:
            break
    stream.close()


def leave_early(scene: Scene, ending: Ending, is_stream: bool) -> None:
    """The connection is closed while nothing is read from it."""
    session = requests.Session()
    session.headers["authorization"] = f"Bearer {scene.customer.api_key}"
    url = f"{scene.stack.web.url}/v1/chat/completions"
    with pytest.raises(requests.exceptions.ReadTimeout):
        session.post(url, json=BODY | {"stream": is_stream}, timeout=1.0)
    session.close()


def ask_sse(scene: Scene, ending: Ending) -> None:
    if ending.act and not ending.num_tokens:
        leave_early(scene, ending, is_stream=True)
    else:
        read_sse(scene, ending)


def ask_plain(scene: Scene, ending: Ending) -> None:
    if ending.act:
        leave_early(scene, ending, is_stream=False)
        return
    try:
        scene.customer.client().chat.completions.create(**BODY)  # type: ignore[call-overload]
    except openai.APIStatusError as error:
        assert error.code == ending.error_code


def ask_socket(scene: Scene, ending: Ending) -> None:
    with chat_socket(scene.stack, scene.customer) as link:
        say(link, type="chat", id="a", body=BODY)
        if ending.act:
            seen = 0
            while seen < (ending.num_tokens or 0):
                frame = hear(link)
                seen += bool(frame["data"]["choices"][0]["delta"].get("content"))
                assert scene.row() is not None, "a byte came before the row was open"
            wait_for("the tokens", lambda: scene.is_under_way(ending.num_tokens))
        if ending.act == CANCEL:
            say(link, type="cancel", id="a")
        if ending.act == LEAVE:
            hang_up(link)
            return
        while hear(link)["type"] not in ("done", "error"):
            pass


WAYS: dict[str, Callable[[Scene, Ending], None]] = {
    "sse": ask_sse,
    "plain": ask_plain,
    "socket": ask_socket,
}


def check_counters(customer: Customer, row: UsageRecord) -> None:
    """What the store counts of the tenant is what the ledger has; nothing is held."""
    month = datetime.now(UTC).strftime("%Y-%m")
    names = [f"{month}:nanos", "running", "held_tokens", "held_nanos", "tokens"]
    num_tokens = (row.prompt_tokens or 0) + (row.completion_tokens or 0)
    wanted = [int(row.cost * 10**9), 0, 0, 0, num_tokens]

    def counted() -> bool:
        found = store().hmget(f"quota:{{{customer.tenant.id}}}:sums", names)
        return [int(one or 0) for one in found] == wanted  # type: ignore[union-attr]

    wait_for(f"counters of {wanted}", counted, timeout_s=5)


@pytest.mark.case("C121")
@pytest.mark.case("C132")
@pytest.mark.case("C135")
@pytest.mark.parametrize(("name", "way"), CASES)
def test_the_books_agree(scene: Scene, name: str, way: str) -> None:
    """Cut streams cost nothing at one peer and everything at another, and holds were kept by the
    exits that nobody thought of. Here what was delivered is charged whatever ended it, once, and
    nothing stays held.
    """
    ending = ENDINGS[name]
    first = scene.stack.replicas if ending.num_replicas == 2 else [home_of(scene)]
    for one in scene.stack.replicas:
        one.behaviour = ending.behaviour if one in first else ending.other
    WAYS[way](scene, ending)
    [row] = scene.customer.usage(1)
    assert (row.status, row.error_code) == (ending.status, ending.error_code)
    assert row.completion_tokens == ending.num_tokens
    assert scene.num_produced() == (ending.num_tokens or 0) + ending.num_lost
    if ending.num_tokens is not None:
        assert (row.prompt_tokens, row.cached_tokens) == (PROMPT_TOKENS, CACHED_TOKENS)
    assert (row.cost > 0) == bool(ending.num_tokens)
    check_counters(scene.customer, row)
    assert scene.gained('grafthouse_tokens_total{kind="completion"}') == (ending.num_tokens or 0)
    assert scene.gained('grafthouse_lost_tokens_total{kind="completion"}') == ending.num_lost
    assert scene.gained(f'grafthouse_generations_total{{status="{ending.status}"}}') == 1
    wait_for("the abort", lambda: not any(one.num_running for one in scene.stack.replicas))


def home_of(scene: Scene) -> FakeReplica:
    """Where the request goes first: another tenant's of the same bytes goes there too."""
    with tenant_scope(scene.customer.tenant.id):
        digest = scene.customer.tenant.adapterversion_set.get().digest
    probe = scene.stack.make_customer()
    scene.stack.activate(probe, "support-bot", digest=digest)
    before = [len(one.bodies) for one in scene.stack.replicas]
    probe.client().chat.completions.create(**BODY)  # type: ignore[call-overload]
    probe.usage(1)
    scene.num_before += scene.num_produced()
    scene.metrics_before = scene.metrics()
    after = [len(one.bodies) for one in scene.stack.replicas]
    return next(
        one
        for one, was, is_now in zip(scene.stack.replicas, before, after, strict=True)
        if is_now > was
    )


@pytest.mark.case("C135")
def test_a_killed_web_process_leaves_what_its_last_heartbeat_said(
    stack: Stack, stack_of_endings: Stack
) -> None:
    """Every 5 s it writes what each open request has come to; the sweeper settles by that where no
    replica keeps a record.
    """
    for one in stack_of_endings.replicas:
        one.behaviour = holding(3)
    urls = [one.url for one in stack_of_endings.replicas]
    web = start_web(stack.folder, stack.database_url, urls)
    made = stack_of_endings.make_customer(tokens_per_minute=10**6, monthly_budget=1000)
    stack_of_endings.activate(made, "support-bot")
    customer = replace(made, web=web)
    chunks = iter(customer.client().chat.completions.create(**BODY, stream=True))  # type: ignore[call-overload]
    for _ in range(4):
        next(chunks)

    def beaten() -> bool:
        with tenant_scope(customer.tenant.id):
            return UsageRecord.objects.get().completion_tokens == 3

    wait_for("a heartbeat", beaten)
    web.process.kill()
    web.process.wait()
    web.close_clients()
    settle_orphans(attempts_of, timezone.now() + timedelta(seconds=61))
    [row] = customer.usage(1)
    assert (row.status, row.error_code) == ("failed", "orphaned")
    assert (row.prompt_tokens, row.completion_tokens) == (PROMPT_TOKENS, 3)
    assert row.cost > 0
