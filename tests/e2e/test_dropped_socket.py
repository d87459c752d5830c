"""The playground in Chromium, its connections cut under a running answer; photographed."""

import contextlib
import selectors
import shutil
import socket
import struct
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.e2e.house import House, Member
from tests.e2e.test_browser import DESKTOP, FLAGS, photograph, sign_in

pytestmark = [pytest.mark.demo, pytest.mark.slow, pytest.mark.browser]
PROMPT = "Tell me a long story about a lighthouse, its keeper and the sea."
MAX_TOKENS = 128
AT_ONCE = struct.pack("ii", 1, 0)


class Wire:
    """TCP between a browser and the house, which can be cut and mended."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._far = (where.hostname, where.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._is_cut = False
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                if self._is_cut:
                    near.close()
                    continue
                pair = (near, socket.create_connection(self._far))
                self._pairs.append(pair)
                threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), selectors.DefaultSelector() as ready:
            ready.register(near, selectors.EVENT_READ, far)
            ready.register(far, selectors.EVENT_READ, near)
            while True:
                for key, _ in ready.select():
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    key.data.sendall(data)
                    if not data:
                        return self._reset(near, far)

    def _reset(self, *ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut(self) -> None:
        """Nothing gets through, and nobody is told good-bye."""
        self._is_cut = True
        while self._pairs:
            self._reset(*self._pairs.pop())

    def mend(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self.cut()
        self._listener.close()


@pytest.fixture
def wire(house: House) -> Iterator[Wire]:
    with contextlib.closing(Wire(house.url)) as wire:
        yield wire


@pytest.fixture
def page(wire: Wire) -> Iterator[Page]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "Chromium is missing: apt-get install chromium"
    faults: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport=DESKTOP, base_url=wire.url, reduced_motion="reduce")
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        yield page
        browser.close()
    assert not faults


def uninterrupted(acme: Member, model: str) -> str:
    """What the same question gets over HTTP."""
    with acme.client() as client:
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": PROMPT}],
            temperature=0,
            max_tokens=MAX_TOKENS,
        )
    return answer.choices[0].message.content or ""


def test_an_answer_goes_on_after_a_cut(house: House, acme: Member, wire: Wire, page: Page) -> None:
    tenant = house.demo["tenants"][0]
    base_model = acme.session.get(f"{house.url}/api/session", timeout=30).json()["base_model"]
    whole = uninterrupted(acme, base_model)
    assert len(whole) > 300
    sign_in(page, tenant["login"], tenant["password"])
    page.goto(f"/t/{acme.slug}/playground?adapter={acme.adapters[0]}")
    page.get_by_label("Prompt", exact=True).fill(PROMPT)
    page.get_by_role("button", name="Send").click()
    answer = page.get_by_role("article", name=f"Answer of {base_model}")
    expect(answer).to_contain_text(whole[:60])
    wire.cut()
    expect(answer).to_contain_text("picking the answer up again")
    cut_at = answer.inner_text()
    photograph(page, "playground-cut")
    wire.mend()
    expect(answer).not_to_contain_text("picking the answer up again")
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=60_000)
    expect(answer).to_contain_text(whole)
    assert len(cut_at) < len(whole), "the answer was over before the cut"
    expect(page.get_by_role("alert")).to_have_count(0)
    photograph(page, "playground-resumed")
