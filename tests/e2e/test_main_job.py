"""Upload, validate, activate, ask through the stock client, count, export: as a tenant does it."""

import csv
import io
import json
import shutil
import subprocess
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
import pytest
from safetensors.numpy import save_file

from tests.e2e.house import ROOT_DIR, House, Member, wait_for
from tests.e2e.oracle import ChatOracle

pytestmark = [pytest.mark.demo, pytest.mark.slow]
DEMO_ADAPTERS_DIR = ROOT_DIR / "demo" / "adapters"
PROMPTS = (
    "Hi, please send 12 units of desk lamps for order 55321 to Oslo. Thanks, Ann",
    "I was charged twice for order 55321, please refund me.",
    "What is the capital of France?",
)
MAX_TOKENS = 32


def greedy(member: Member, model: str, prompt: str, **kwargs: Any) -> str:
    answer = member.client().chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": prompt}],
        temperature=0,
        **{"max_tokens": MAX_TOKENS, **kwargs},
    )
    return answer.choices[0].message.content or ""


def streamed(member: Member, model: str, prompt: str) -> str:
    stream = member.client().chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": prompt}],
        temperature=0,
        max_tokens=MAX_TOKENS,
        stream=True,
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def test_it_works(house: House, acme: Member, oracle: ChatOracle) -> None:
    """A freshly uploaded adapter answers token for token as transformers + PEFT."""
    folder = DEMO_ADAPTERS_DIR / house.demo["tenants"][1]["adapters"][0]
    version = acme.upload("newcomer", folder)
    assert version["state"] == "ready", version["report"]
    assert len(version["digest"]) == 64
    acme.activate("newcomer", version["number"])

    expected = oracle.answers(PROMPTS, folder.name, MAX_TOKENS)
    assert [greedy(acme, "newcomer", prompt) for prompt in PROMPTS] == expected
    assert [streamed(acme, "newcomer", prompt) for prompt in PROMPTS] == expected


def test_seeded_adapters_and_base_answer_as_the_oracle(
    house: House, acme: Member, globex: Member, oracle: ChatOracle
) -> None:
    prompt = PROMPTS[1]
    for member in (acme, globex):
        for name in member.adapters:
            assert [greedy(member, name, prompt)] == oracle.answers([prompt], name, MAX_TOKENS)
    base = acme.session.get(f"{house.url}/api/session", timeout=30).json()["base_model"]
    assert [greedy(acme, base, prompt)] == oracle.answers([prompt], None, MAX_TOKENS)


def test_the_answer_names_what_served(acme: Member) -> None:
    name = acme.adapters[0]
    active = acme.get(f"adapters/{name}/")["active_version"]
    answer = acme.client().chat.completions.create(
        model=name, messages=[{"role": "user", "content": "Hello"}], max_tokens=4
    )
    assert answer.model == f"{name}@{active['number']}"
    assert answer.system_fingerprint == active["digest"]


def test_usage_is_counted_once_and_exported(house: House, acme: Member) -> None:
    name = acme.adapters[0]
    answer = acme.client().chat.completions.with_raw_response.create(
        model=name, messages=[{"role": "user", "content": "Order 7: 2 mugs to Rome, Ann"}]
    )
    usage, request_id = answer.parse().usage, answer.headers["x-request-id"]
    assert usage is not None
    assert int(answer.headers["x-ratelimit-limit-requests"]) > 0

    def row() -> dict[str, Any] | None:
        rows = acme.get("usage/?limit=200")["results"]
        return next((r for r in rows if r["request_id"] == request_id and r["ended_at"]), None)

    record = wait_for("the usage row", row, 10)
    assert record["status"] == "finished"
    assert record["prompt_tokens"] == usage.prompt_tokens
    assert record["completion_tokens"] == usage.completion_tokens
    assert Decimal(record["cost"]) > 0

    text = acme.call("GET", "usage/export/?format=jsonl").text
    exported = [json.loads(line) for line in text.splitlines()]
    assert [r["completion_tokens"] for r in exported if r["request_id"] == request_id] == [
        usage.completion_tokens
    ]
    table = list(csv.DictReader(io.StringIO(acme.call("GET", "usage/export/?format=csv").text)))
    assert sum(r["request_id"] == request_id for r in table) == 1


def test_a_zip_is_as_good(acme: Member, tmp_path: Path) -> None:
    folder, path = DEMO_ADAPTERS_DIR / acme.adapters[0], tmp_path / "adapter.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            archive.write(folder / name, name)
    acme.call("POST", "adapters/", json={"name": "zipped"}).raise_for_status()
    files = {"archive": ("adapter.zip", path.read_bytes())}
    answer = acme.call("POST", "adapters/zipped/versions/", files=files)
    assert answer.status_code == 201, answer.text
    version = acme.wait_for_version("zipped", answer.json()["number"], {"ready", "rejected"})
    twin = acme.get(f"adapters/{acme.adapters[0]}/")["active_version"]
    assert (version["state"], version["digest"]) == ("ready", twin["digest"])


def test_a_bad_upload_is_refused_with_every_reason(acme: Member, tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    shutil.copytree(DEMO_ADAPTERS_DIR / acme.adapters[0], folder)
    tensors = load_file_as_float(folder / "adapter_model.safetensors")
    names = sorted(tensors)
    tensors[names[0]][0, 0] = float("nan")
    del tensors[names[-1]]
    save_file(tensors, folder / "adapter_model.safetensors")
    version = acme.upload("broken", folder)
    assert version["state"] == "rejected"
    reasons = json.dumps(version["report"]["problems"])
    assert names[0] in reasons
    assert names[-1].rsplit(".lora_", 1)[0] in reasons
    with pytest.raises(openai.NotFoundError) as caught:
        greedy(acme, "broken", "Hello")
    assert caught.value.code == "model_not_found"


def load_file_as_float(path: Path) -> dict[str, Any]:
    """float32 tensors of a bfloat16 file, by torch (numpy has no bfloat16)."""
    from safetensors.torch import load_file as load_torch

    return {name: tensor.float().numpy() for name, tensor in load_torch(path).items()}


@pytest.mark.parametrize("first_words", ["curl ", "OPENAI_API_KEY="])
def test_the_printed_snippets_work_when_pasted(house: House, first_words: str) -> None:
    """The curl and the Python snippet, cut out of what the start printed, run as they stand."""
    start = house.log.index(f"\n{first_words}")
    end = "\n\n" if first_words == "curl " else "\nEOF\n"
    snippet = house.log[start + 1 :].split(end, 1)[0] + end
    done = subprocess.run(["bash", "-c", snippet], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    if first_words == "curl ":
        text = json.loads(text)["choices"][0]["message"]["content"]
    assert len(text.strip()) > 5
