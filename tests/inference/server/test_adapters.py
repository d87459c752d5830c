"""Loading, unloading, listing, while serving. The real engine."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from tokenizers import Tokenizer

from tests.inference.server.conftest import Server
from tests.tiny import make_adapter

HI: list[Any] = [{"role": "user", "content": "hi there"}]
LOAD, UNLOAD = "/load_lora_adapter", "/unload_lora_adapter"


def names(server: Server) -> list[str]:
    return [model["id"] for model in server.call("/v1/models").json["data"]]


def ask(server: Server, model: str, num_tokens: int = 8) -> Any:
    body = {"model": model, "messages": HI, "max_tokens": num_tokens, "temperature": 0}
    return server.call("/v1/chat/completions", body | {"ignore_eos": True})


def test_it_works(server: Server, adapters: dict[str, Path]) -> None:
    green = {"lora_name": "green", "lora_path": str(adapters["green"])}
    loaded = server.call(LOAD, green)
    assert loaded.status == 200
    assert loaded.json["success"] is True
    assert (loaded.json["lora_name"], loaded.json["rank"]) == ("green", 8)
    assert len(loaded.json["digest"]) == 64
    answer = ask(server, "green").json
    assert answer["system_fingerprint"] == loaded.json["digest"]
    # The same again is a success, by either path.
    assert server.call("/v1" + LOAD, green).json == loaded.json
    assert names(server) == ["tiny", "green", "red"]
    model = server.call("/v1/models/green").json
    assert (model["parent"], model["digest"]) == ("tiny", loaded.json["digest"])
    assert server.call("/v1" + UNLOAD, {"lora_name": "green"}).json == {"success": True}
    assert server.call(UNLOAD, {"lora_name": "green"}).error["code"] == "model_not_found"
    assert ask(server, "green").status == 404
    assert names(server) == ["tiny", "red"]


def test_the_state_reports_what_the_router_reads(server: Server) -> None:
    state = server.call("/state").json
    assert set(state) == {
        "model",
        "num_waiting",
        "num_running",
        "num_kv_blocks",
        "num_free_kv_blocks",
        "max_model_len",
        "max_lora_rank",
        "max_loras_per_batch",
        "adapters",
    }
    assert state["model"] == "tiny"
    assert (state["max_lora_rank"], state["max_loras_per_batch"]) == (64, 8)
    red = next(adapter for adapter in state["adapters"] if adapter["name"] == "red")
    assert set(red) == {"name", "digest", "rank", "tier", "num_leases", "pinned", "is_moving"}


def test_an_activated_lora_needs_its_invocation_in_the_prompt(
    server: Server, base: Path, adapters: dict[str, Path]
) -> None:
    tokens = Tokenizer.from_file(str(base / "tokenizer.json")).encode("<check>").ids
    folder = adapters["red"].parent / "check"
    path = make_adapter(folder, base, seed=7, alora_invocation_tokens=tokens)
    server.call("/v1/load_lora_adapter", {"lora_name": "check", "lora_path": str(path)})
    body = {"model": "check", "prompt": "is it <check> right", "max_tokens": 4, "ignore_eos": True}
    answer = server.call("/v1/completions", body)
    assert answer.json["usage"]["completion_tokens"] == 4
    refused = server.call("/v1/completions", body | {"prompt": "is it right"})
    assert refused.status == 400 and refused.error["code"] == "invalid_request"
    assert str(tokens) in refused.error["message"]
    chat = {"model": "check", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    refused = server.call("/v1/chat/completions", chat)
    assert (refused.status, refused.error["param"]) == (400, "messages")
    # What comes before it is the base's: 40 tokens, two blocks of 16.
    body = body | {"prompt": "x" * 40 + "<check> it", "cache_salt": "one tenant"}
    for model, num_cached in (("tiny", 0), ("check", 32), ("red", 0)):
        usage = server.call("/v1/completions", body | {"model": model}).json["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == num_cached, model
    server.call("/v1/unload_lora_adapter", {"lora_name": "check"})


def test_other_bytes_under_the_same_name_are_a_conflict(
    server: Server, adapters: dict[str, Path]
) -> None:
    body = {"lora_name": "red", "lora_path": str(adapters["blue"])}
    refused = server.call(LOAD, body)
    assert refused.status == 409
    assert refused.error["code"] == "adapter_conflict"
    assert server.call("/v1/models/red").status == 200


def test_two_names_of_the_same_bytes_are_one_adapter(
    server: Server, adapters: dict[str, Path]
) -> None:
    digests = {
        server.call(LOAD, {"lora_name": name, "lora_path": str(adapters["blue"])}).json["digest"]
        for name in ("blue", "org/blue:2")
    }
    assert len(digests) == 1
    assert server.call("/v1/models/org/blue:2").json["id"] == "org/blue:2"
    assert server.call("/v1/models/org%2Fblue%3A2").json["id"] == "org/blue:2"
    assert ask(server, "org/blue:2").status == 200
    for name in ("blue", "org/blue:2"):
        assert server.call(UNLOAD, {"lora_name": name}).status == 200


@pytest.mark.case("C76")
def test_an_invalid_adapter_says_why_and_harms_nobody(
    server: Server, base: Path, adapters: dict[str, Path]
) -> None:
    folder = adapters["red"].parent
    wide = make_adapter(folder / "wide", base, r=65, seed=9)
    broken = shutil.copytree(adapters["red"], folder / "broken", dirs_exist_ok=True)
    (broken / "adapter_model.safetensors").write_bytes(b"\x00" * 40)
    empty = folder / "empty"
    empty.mkdir(exist_ok=True)
    for path, word in ((wide, "65"), (broken, ""), (empty, "adapter_config.json")):
        refused = server.call(LOAD, {"lora_name": "bad", "lora_path": str(path)})
        assert refused.status == 400, refused.body
        assert refused.error["code"] == "invalid_adapter"
        assert word in refused.error["message"]
    assert "bad" not in names(server)
    assert ask(server, "red").status == 200


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"lora_name": None}, "lora_name"),
        ({"lora_name": ""}, "lora_name"),
        ({"lora_name": "tiny"}, "lora_name"),
        ({"lora_name": "x" * 300}, "lora_name"),
        ({"lora_name": "a\nb"}, "lora_name"),
        ({"lora_path": None}, "lora_path"),
        ({"lora_path": 5}, "lora_path"),
        ({"lora_path": "/etc"}, "lora_path"),
        ({"lora_path": "a\0b"}, "lora_path"),
        ({"pinned": "yes"}, "pinned"),
        ({"merge": True}, "merge"),
    ],
)
def test_a_bad_field_is_named(
    server: Server, adapters: dict[str, Path], change: dict[str, Any], param: str
) -> None:
    body = {"lora_name": "x", "lora_path": str(adapters["blue"])} | change
    refused = server.call(LOAD, body)
    assert refused.status == 400
    assert refused.error["param"] == param
    assert "x" not in names(server)


def test_paths_do_not_lead_out_of_the_allowed_folder(
    server: Server, base: Path, adapters: dict[str, Path]
) -> None:
    outside = make_adapter(base.parent / "outside", base)
    root = adapters["red"].parent
    link = root / "link"
    link.unlink(missing_ok=True)
    link.symlink_to(outside)
    for path in (outside, root / ".." / "outside", link, Path("adapters/red")):
        refused = server.call(LOAD, {"lora_name": "out", "lora_path": str(path)})
        assert refused.status == 400
        assert "--adapter-dir" in refused.error["message"]


def test_unload_while_streaming(server: Server, adapters: dict[str, Path]) -> None:
    """The running stream ends as it would have; the next request gets 404."""
    body = {"lora_name": "leaving", "lora_path": str(adapters["blue"])}
    server.call(LOAD, body)
    alone = ask(server, "leaving", 200).json["choices"][0]["message"]["content"]
    with server.openai() as client:
        stream = client.chat.completions.create(
            model="leaving",
            messages=HI,
            max_tokens=200,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        pieces = [next(iter(stream)).choices[0].delta.content or ""]
        assert server.call(UNLOAD, {"lora_name": "leaving"}).status == 200
        assert ask(server, "leaving").status == 404
        pieces += [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == alone


def test_a_load_while_streams_run_changes_no_token(
    server: Server, client: OpenAI, adapters: dict[str, Path]
) -> None:
    alone = ask(server, "red", 120).json["choices"][0]["message"]["content"]
    stream = client.chat.completions.create(
        model="red",
        messages=HI,
        max_tokens=120,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    pieces = [next(iter(stream)).choices[0].delta.content or ""]
    body = {"lora_name": "newcomer", "lora_path": str(adapters["green"])}
    assert server.call(LOAD, body).status == 200
    assert ask(server, "newcomer").status == 200
    pieces += [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == alone
    assert server.call(UNLOAD, {"lora_name": "newcomer"}).status == 200


@pytest.mark.case("C104")
@pytest.mark.parametrize("model", ["tiny", "red"])
def test_a_client_that_leaves_frees_everything(server: Server, model: str) -> None:
    """At peers the device worked on for minutes; here queue, KV and leases are free in a second."""
    free = server.call("/state").json["num_free_kv_blocks"]
    with server.openai() as client:
        stream = client.chat.completions.create(
            model=model, messages=HI, n=4, stream=True, extra_body={"ignore_eos": True}
        )
        for _ in range(6):
            next(iter(stream))
        assert server.call("/state").json["num_running"] > 0
        stream.close()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        state = server.call("/state").json
        if state["num_running"] == 0:
            break
        time.sleep(0.05)
    assert state["num_running"] == state["num_waiting"] == 0
    assert all(adapter["num_leases"] == 0 for adapter in state["adapters"])
    assert state["num_free_kv_blocks"] == free
    assert json.loads(server.call("/health").body) == {"status": "ok"}
