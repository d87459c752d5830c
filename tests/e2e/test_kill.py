"""kill -9 of a part of a running house: it comes back, and nothing is lost."""

import os
import signal
import time
from typing import Any

import openai
import pytest

from tests.e2e.house import House, Member, process_ids, store_process_id, wait_for

pytestmark = [pytest.mark.demo, pytest.mark.slow]
HELLO: Any = [{"role": "user", "content": "Tell me about order 12345 for Ann in Rome, 3 mugs."}]
RECOVERY_S = 30.0


def kill(house: House, words: str) -> None:
    found = process_ids(house.var_dir, words)
    assert found, f"no process runs {words!r}"
    for process_id in found:
        os.kill(process_id, signal.SIGKILL)


def ask(member: Member) -> str | None:
    try:
        answer = member.client(max_retries=0).chat.completions.create(
            model=member.adapters[0], messages=HELLO, max_tokens=4
        )
    except openai.APIStatusError as error:
        # Never the base model, never a stack trace: only "not yet".
        assert error.status_code == 503, error.message
        return None
    return answer.system_fingerprint


def test_the_engine_is_killed_under_a_stream(house: House, acme: Member) -> None:
    digest = acme.get(f"adapters/{acme.adapters[0]}/")["active_version"]["digest"]
    raw = acme.client(max_retries=0).chat.completions.with_raw_response.create(
        model=acme.adapters[0],
        messages=HELLO,
        stream=True,
        max_tokens=400,
        extra_body={"ignore_eos": True},
    )
    request_id, num_chunks = raw.headers["x-request-id"], 0
    with pytest.raises(openai.APIError):
        for _chunk in raw.parse():
            num_chunks += 1
            if num_chunks == 12:
                kill(house, "-m inference serve")
    killed_at = time.monotonic()
    assert num_chunks >= 12

    assert wait_for("an answer after the kill", lambda: ask(acme), RECOVERY_S) == digest
    assert time.monotonic() - killed_at < RECOVERY_S

    def row() -> dict[str, Any] | None:
        rows = acme.get("usage/?limit=200")["results"]
        return next((r for r in rows if r["request_id"] == request_id and r["ended_at"]), None)

    record = wait_for("the cut stream's usage", row, 20)
    assert record["status"] == "failed"
    assert record["prompt_tokens"] > 0
    assert record["completion_tokens"] >= 10


def test_the_worker_is_killed(house: House, acme: Member, tmp_path_factory: Any) -> None:
    from tests.e2e.test_live_swap import DEMO_ADAPTERS_DIR, other_version

    kill(house, "celery -A gateway")
    folder = other_version(
        DEMO_ADAPTERS_DIR / acme.adapters[0], tmp_path_factory.mktemp("late") / "a", 0.9
    )
    version = acme.upload("after-the-worker", folder)
    assert version["state"] == "ready"


def test_the_web_is_killed(house: House, acme: Member) -> None:
    kill(house, "uvicorn gateway.asgi")
    assert wait_for("an answer after the kill", lambda: ask(acme), RECOVERY_S)


def test_the_store_of_counters_is_killed(house: House, acme: Member) -> None:
    os.kill(store_process_id(house.var_dir), signal.SIGKILL)
    assert wait_for("an answer after the kill", lambda: ask(acme), RECOVERY_S)
