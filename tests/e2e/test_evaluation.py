"""A version measured in a running house: PEFT's loss, through the death of the worker."""

import json
import os
import signal
from typing import Any

import pytest

from demo.data import examples
from tests.e2e.house import House, Member, process_ids, wait_for
from tests.e2e.oracle import ChatOracle

pytestmark = [pytest.mark.demo, pytest.mark.slow]
NAME = "order-json"
NUM_EXAMPLES = 2


def test_it_works_through_the_death_of_its_worker(
    house: House, acme: Member, oracle: ChatOracle
) -> None:
    held_out = examples(NAME, "heldout")[:NUM_EXAMPLES]
    pairs = [(one.message, one.answer) for one in held_out]
    lines = [
        {
            "messages": [
                {"role": "user", "content": message},
                {"role": "assistant", "content": answer},
            ],
            "golden": number == 0,
        }
        for number, (message, answer) in enumerate(pairs)
    ]
    content = "\n".join(map(json.dumps, lines))
    acme.call("PUT", f"adapters/{NAME}/eval-set/", json={"content": content}).raise_for_status()
    active = acme.get(f"adapters/{NAME}/")["active_version"]
    where = f"adapters/{NAME}/versions/{active['number']}/evaluations/"
    num_charged = acme.get("usage/")["count"]
    prompt = "Answer with the order as JSON and nothing else."
    begun = acme.call("POST", where, json={"system_prompt": prompt})
    assert begun.status_code == 202, begun.text
    one = f"{where}{begun.json()['id']}/"

    def found(*statuses: str) -> dict[str, Any] | None:
        row: dict[str, Any] = acme.get(one)
        return row if row["status"] in statuses else None

    wait_for("a worker at it", lambda: found("running"), 30)
    for process_id in process_ids(house.var_dir, "celery -A gateway worker"):
        os.kill(process_id, signal.SIGKILL)
    row = wait_for("its end", lambda: found("completed", "failed"), 60)
    assert row["status"] == "completed", row
    assert acme.get("usage/")["count"] == num_charged
    assert (row["num_done"], row["digest"]) == (row["num_steps"], active["digest"])

    base, prompted, adapter = row["results"]["contenders"]
    for contender, name, told in (
        (base, None, ""),
        (prompted, None, prompt),
        (adapter, NAME, ""),
    ):
        loss, num_tokens = oracle.loss(pairs, name, told)
        assert contender["num_tokens"] == num_tokens
        assert contender["loss"] == pytest.approx(loss, abs=1e-3), contender["name"]
    assert adapter["loss"] < min(base["loss"], prompted["loss"])
    (golden,) = row["results"]["golden"]
    assert golden["expected"] == pairs[0][1]
    served = acme.client().chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": pairs[0][0]}], temperature=0
    )
    assert golden["answers"]["adapter"] == served.choices[0].message.content
