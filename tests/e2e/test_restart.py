"""The house is stopped and started again: all is as it was. The last file: it ends the house."""

import signal
import time
from typing import Any

import pytest

from tests.e2e.house import House, Member, is_up, process_ids, start, wait_for

pytestmark = [pytest.mark.demo, pytest.mark.slow]


def stop(house: House) -> None:
    house.process.send_signal(signal.SIGINT)
    assert house.process.wait(30) == 0
    assert not process_ids(house.var_dir, "")


def seeded(member: Member) -> list[dict[str, Any]]:
    return [
        version
        for name in member.adapters
        for version in member.get(f"adapters/{name}/versions/")["results"]
    ]


def test_a_second_start_finds_all_as_it_was(house: House, acme: Member) -> None:
    assert (house.var_dir / "demo.json").stat().st_mode & 0o777 == 0o600
    assert all(tenant["api_key"] in house.log for tenant in house.demo["tenants"])
    before = seeded(acme)
    assert [version["state"] for version in before] == ["active", "active"]
    stop(house)
    started = time.monotonic()
    process = start(house.var_dir)
    try:
        demo = wait_for("the second start", lambda: is_up(process, house.var_dir), 240)
        print(f"second start: {time.monotonic() - started:.1f} s")
        assert demo["tenants"] == house.demo["tenants"]
        assert demo["operator"] == house.demo["operator"]
        again = House(demo["url"], house.var_dir, demo, process)
        assert demo["tenants"][0]["api_key"] not in again.log
        member = again.sign_in(0)
        with member.session:
            assert seeded(member) == before
        # Before serve says it is up, the replica holds again what it held.
        with member.client(max_retries=0) as client:
            answer = client.chat.completions.create(
                model="ticket-triage",
                temperature=0,
                messages=[{"role": "user", "content": "Where is my parcel?"}],
            )
        assert answer.choices[0].message.content == "shipping"
    finally:
        process.kill()
        process.wait()
    # kill -9 of the supervisor leaves nothing behind.
    wait_for("no process left", lambda: not process_ids(house.var_dir, ""), 10)
