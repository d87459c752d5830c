"""/v1/uploads of a real web process, by the official client and by raw requests."""

import hashlib
import io
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import requests

from adapters.models import AdapterVersion, Upload
from tenants.scope import tenant_scope
from tests.gateway.conftest import Customer, Stack
from tests.gateway.live import Web, start_web

# What one part may add to the web process, whatever its size.
MAX_GROWTH_BYTES = 40 << 20
PART_BYTES = 16 << 20


@pytest.fixture
def customer(stack: Stack) -> Customer:
    return stack.make_customer(("adapters",))


@pytest.fixture
def spare_web(running_stack: Stack, tmp_path: Path) -> Iterator[Web]:
    """A web process that a test may kill; its store is the stack's."""
    web = start_web(running_stack.folder, running_stack.database_url, [])
    yield web
    web.process.kill()
    web.process.wait()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Raw:
    """The endpoint as curl meets it."""

    def __init__(self, url: str, api_key: str) -> None:
        self._url = f"{url}/v1/uploads"
        self._headers = {"authorization": f"Bearer {api_key}"}

    def post(self, path: str = "", **given: Any) -> requests.Response:
        return requests.post(self._url + path, headers=self._headers, timeout=60, **given)

    def get(self, path: str) -> requests.Response:
        return requests.get(self._url + path, headers=self._headers, timeout=60)

    def begin(self, num_bytes: int) -> str:
        body = {"filename": "bot.zip", "bytes": num_bytes, "purpose": "fine-tune"}
        return str(self.post(json=body).json()["id"])

    def put(self, upload: str, number: int, data: bytes, digest: str = "") -> requests.Response:
        query = f"number={number}&sha256={digest or sha256(data)}"
        return self.post(f"/{upload}/parts?{query}", files={"data": data})


def test_it_works(customer: Customer, tmp_path: Path) -> None:
    """The official client's own helper, with nothing of ours in the call."""
    data = os.urandom(300_000)
    path = tmp_path / "support-bot.tar.gz"
    path.write_bytes(data)
    done = customer.client().uploads.upload_file_chunked(
        file=path,
        mime_type="application/gzip",
        purpose="fine-tune",
        part_size=100_000,
        md5=hashlib.md5(data).hexdigest(),
    )
    assert (done.status, done.bytes, done.purpose) == ("completed", len(data), "fine-tune")
    assert done.file is not None and done.file.id == "support-bot@1"
    with tenant_scope(customer.tenant.id):
        version = AdapterVersion.objects.get()
        assert (version.state, version.size_bytes) == ("uploaded", len(data))


def test_parts_step_by_step(customer: Customer) -> None:
    client = customer.client()
    upload = client.uploads.create(
        bytes=6,
        filename="adapter.tar",
        mime_type="application/x-tar",
        purpose="fine-tune",
        extra_body={"adapter": "support-bot"},
    )
    first = client.uploads.parts.create(upload.id, data=io.BytesIO(b"abc"))
    query = {"number": 2, "sha256": sha256(b"def")}
    second = client.uploads.parts.create(upload.id, data=b"def", extra_query=query)
    with pytest.raises(openai.BadRequestError, match="sha256") as caught:
        client.uploads.parts.create(upload.id, data=b"xyz", extra_query=query)
    assert caught.value.code == "checksum_mismatch" and caught.value.param == "sha256"
    with pytest.raises(openai.BadRequestError, match="expected 6 bytes, got 3"):
        client.uploads.complete(upload.id, part_ids=[first.id])
    done = client.uploads.complete(upload.id, part_ids=[first.id, second.id])
    assert done.model_extra is not None and done.model_extra["version"]["state"] == "uploaded"
    other = client.uploads.create(
        bytes=6, filename="x.zip", mime_type="application/zip", purpose="fine-tune"
    )
    assert client.uploads.cancel(other.id).status == "cancelled"
    with pytest.raises(openai.ConflictError) as late:
        client.uploads.parts.create(other.id, data=b"x")
    assert late.value.code == "upload_not_pending"


def test_refusals_are_openais(stack: Stack, customer: Customer, globex: Customer) -> None:
    url = stack.web.url
    theirs = Raw(url, customer.api_key).begin(10)
    stranger = Raw(url, stack.make_customer(("adapters",)).api_key)
    seen = [
        (Raw(url, "gh-nobody").get("/x"), 401, "invalid_api_key"),
        # A key of inference only.
        (Raw(url, globex.api_key).post(json={}), 403, "permission_denied"),
        (stranger.get(f"/{theirs}"), 404, "not_found"),
        (stranger.get("/upload_00"), 404, "not_found"),
        (stranger.get("/a/b/c"), 404, "not_found"),
        (stranger.get(""), 405, "method_not_allowed"),
        (stranger.post(data={"bytes": 1}), 415, "unsupported_media_type"),
        (stranger.post(json={"bytes": "many"}), 400, "invalid_request"),
        (stranger.post(json={"filename": "x.zip", "bytes": 2**60}), 413, "upload_too_large"),
    ]
    for answer, status, code in seen:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (answer.status_code, error["code"]) == (status, code)
        assert answer.headers["x-request-id"]
    # A base URL's doubled slash, and a trailing one.
    assert Raw(f"{url}/", customer.api_key).get(f"/{theirs}/").ok


def resident_bytes(web: Web, what: str = "VmRSS") -> int:
    for line in Path(f"/proc/{web.process.pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(what)


def test_a_part_is_not_held_in_memory(stack: Stack, customer: Customer, spare_web: Web) -> None:
    """scripts/measure-upload does it with 2 GB; its figure is in adapters/README.md."""
    raw, data = Raw(spare_web.url, customer.api_key), os.urandom(PART_BYTES)
    upload = raw.begin(2 * PART_BYTES)
    raw.put(upload, 1, data[:1000])
    before = resident_bytes(spare_web)
    for number in (1, 2):
        assert raw.put(upload, number, data).ok
    assert raw.post(f"/{upload}/complete", json={}).ok
    assert resident_bytes(spare_web, "VmHWM") - before < MAX_GROWTH_BYTES


def test_kill_9_amid_a_part_loses_that_part_only(
    stack: Stack, customer: Customer, spare_web: Web
) -> None:
    data = os.urandom(200_000)
    raw = Raw(spare_web.url, customer.api_key)
    upload = raw.begin(2 * len(data))
    assert raw.put(upload, 1, data).ok

    def half_then_kill() -> Iterator[bytes]:
        yield data[: len(data) // 2]
        spare_web.process.send_signal(signal.SIGKILL)
        spare_web.process.wait()
        yield data[len(data) // 2 :]

    kind = {"content-type": "multipart/form-data; boundary=x"}
    with pytest.raises(requests.RequestException):
        requests.post(
            f"{spare_web.url}/v1/uploads/{upload}/parts?number=2",
            data=half_then_kill(),
            headers={"authorization": f"Bearer {customer.api_key}", **kind},
            timeout=30,
        )
    other = Raw(stack.web.url, customer.api_key)
    arrived = other.get(f"/{upload}").json()
    assert [part["number"] for part in arrived["parts"]] == [1]
    assert other.put(upload, 2, data).ok
    done = json.loads(other.post(f"/{upload}/complete", json={}).text)
    assert done["version"]["number"] == 1
    with tenant_scope(customer.tenant.id):
        assert Upload.objects.get().status == "completed"
