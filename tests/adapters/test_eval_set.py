"""Eval sets: what is taken, and every refusal by line and field."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from adapters.eval_set import MAX_BYTES, MAX_EXAMPLES, MAX_LINE_CHARS, parse
from adapters.models import EvalSet
from adapters.publish import create_adapter
from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.models import AuditEvent
from tenants.scope import tenant_scope
from tests.adapters.conftest import client_of

CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}
PLAIN = {"prompt": "2 + 2 =", "completion": " 4"}
URL = "/api/tenants/acme/adapters/support-bot/eval-set/"
# As the settings have it, before a test says otherwise.
SHIPPED = settings.EVAL_SET_PATH


def lines(*values: Any) -> bytes:
    return "\n".join(json.dumps(value) for value in values).encode()


def put(client: Client, raw: bytes) -> Any:
    body = {"content": raw.decode(errors="surrogatepass")}
    return client.put(URL, body, content_type="application/json")


@pytest.fixture
def adapter(scope: Principal) -> None:
    create_adapter(scope, "support-bot")


def turn(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"} | fields, CHAT["messages"][1]]}


@pytest.mark.parametrize(
    ("raw", "line", "field"),
    [
        (b"", 0, ""),
        (b"\n \n", 0, ""),
        (lines(CHAT) + b"\n{", 2, ""),
        (lines(CHAT) + b"\n\xff", 2, ""),
        (b"[1]", 1, ""),
        (b"[" * 5000, 1, ""),
        (b'{"prompt": ' + b"9" * 5000 + b"}", 1, ""),
        (lines({"prompt": "a"}), 1, "completion"),
        (lines({"completion": "a"}), 1, "prompt"),
        (lines(PLAIN | {"completion": ""}), 1, "completion"),
        (lines(PLAIN | {"prompt": 5}), 1, "prompt"),
        (lines(PLAIN | {"prompt": "a\0b"}), 1, "prompt"),
        (lines(PLAIN | {"prompt": "\ud800"}), 1, "prompt"),
        (lines(PLAIN | {"colour": 1}), 1, "colour"),
        (lines(PLAIN | CHAT), 1, "prompt"),
        (lines(PLAIN | {"golden": 1}), 1, "golden"),
        (lines(*[PLAIN | {"golden": True}] * 9), 0, "golden"),
        (lines({"messages": []}), 1, "messages"),
        (lines({"messages": [CHAT["messages"][0]] * 65}), 1, "messages"),
        (lines({"messages": [CHAT["messages"][0]] * 2}), 1, "messages[1].role"),
        (lines({"messages": ["hi", "yo"]}), 1, "messages[0]"),
        (lines(turn(role="pirate")), 1, "messages[0].role"),
        (lines(turn(role=["user"])), 1, "messages[0].role"),
        (lines(turn(content=None)), 1, "messages[0].content"),
        (lines(turn(name="x")), 1, "messages[0].name"),
        (lines(PLAIN, PLAIN | {"prompt": "x" * MAX_LINE_CHARS}), 2, ""),
        (lines(*[PLAIN] * (MAX_EXAMPLES + 1)), 0, ""),
        (b" " * (MAX_BYTES + 1), 0, ""),
    ],
    ids=range(28),
)
def test_a_bad_line_is_named(raw: bytes, line: int, field: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(raw)
    assert (caught.value.status, caught.value.code) == (400, "invalid_eval_set")
    assert (caught.value.details[0]["line"], caught.value.details[0]["field"]) == (line, field)
    assert caught.value.details[0]["message"]
    # It can be sent as it is.
    json.dumps(caught.value.details).encode()


def test_all_lines_are_judged_at_once() -> None:
    with pytest.raises(ApiError) as caught:
        parse(lines({"prompt": 1, "completion": 2}, CHAT, turn(role="x", content="")))
    places = [(one["line"], one["field"]) for one in caught.value.details]
    assert places == [
        (1, "prompt"),
        (1, "completion"),
        (3, "messages[0].role"),
        (3, "messages[0].content"),
    ]
    assert "line 1: prompt: expected" in caught.value.message


def test_golden_lines_are_those_marked_or_the_first() -> None:
    def golden(*values: Any) -> list[int]:
        return [one["line"] for one in parse(lines(*values)) if one.get("golden")]

    assert golden(*[PLAIN] * 5) == [1, 2, 3]
    assert golden(PLAIN, CHAT | {"golden": True}, PLAIN | {"golden": False}) == [2]
    # A byte order mark, and the line ends of Windows.
    assert len(parse(b"\xef\xbb\xbf" + lines(PLAIN) + b"\r\n" + lines(CHAT) + b"\r\n")) == 2


def test_it_works(client: Client, alice: Principal, adapter: None) -> None:
    raw = lines(CHAT, PLAIN)
    assert client.get(URL).status_code == 204
    answer = put(client, raw)
    assert answer.status_code == 200, answer.content
    expected = {"num_examples": 2, "num_golden": 2, "size_bytes": len(raw), "is_default": False}
    expected |= {"sha256": hashlib.sha256(raw).hexdigest(), "created_by": "alice"}
    assert {name: answer.json()[name] for name in expected} == expected
    assert client.get(URL).json() == answer.json()
    assert put(client, lines(CHAT)).json()["num_examples"] == 1
    assert client.delete(URL).status_code == client.delete(URL).status_code == 204
    assert client.get(URL).status_code == 204
    with tenant_scope(alice.tenant_id):
        rows = AuditEvent.objects.filter(action__startswith="eval_set.").order_by("id")
        assert [row.action for row in rows] == [
            *["eval_set.replaced"] * 2,
            "eval_set.removed",
        ]
        assert not EvalSet.objects.exists()


def test_refusals_at_the_api(client: Client, carol: Principal, adapter: None) -> None:
    answer = put(client, lines({"prompt": "a"}))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "invalid_eval_set"
    assert error["details"][0]["line"] == 1
    for body in ({}, {"content": 5}, {"content": "x", "colour": 1}, []):
        answer = client.put(URL, json.dumps(body), content_type="application/json")
        assert answer.status_code == 400, body
    assert put(client_of(carol), lines(CHAT)).status_code == 404
    missing = URL.replace("support-bot", "nope")
    body = {"content": lines(CHAT).decode()}
    assert client.put(missing, body, content_type="application/json").status_code == 404


def test_the_operators_default(
    client: Client, adapter: None, house: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "default.jsonl"
    house.EVAL_SET_PATH = str(path)
    assert client.get(URL).status_code == 204
    path.write_bytes(b"{")
    assert client.get(URL).status_code == 204
    assert "EVAL_SET_PATH" in caplog.text
    path.write_bytes(lines(PLAIN))
    found = client.get(URL).json()
    assert (found["is_default"], found["created_by"]) == (True, "operator")
    assert put(client, lines(CHAT)).json()["is_default"] is False
    # The same bytes, now the tenant's own.
    assert put(client, lines(PLAIN)).json()["is_default"] is False
    client.delete(URL)
    assert client.get(URL).json()["is_default"] is True


def test_a_default_comes_along(client: Client, adapter: None, house: Any) -> None:
    """Short enough for a small context, and a tenant's own takes its place."""
    house.EVAL_SET_PATH = SHIPPED
    found = client.get(URL).json()
    assert (found["is_default"], found["num_examples"], found["num_golden"]) == (True, 40, 4)
    examples = parse(Path(SHIPPED).read_bytes())
    sizes = [sum(len(turn["content"]) for turn in one["messages"]) for one in examples]
    assert max(sizes) < 400
    questions = {json.dumps(one["messages"][:-1]) for one in examples}
    assert len(questions) == len(examples)
    assert put(client, lines(CHAT)).json()["is_default"] is False
