"""The main job by clicking, in Chromium, against the running house; each page photographed.

Screenshots go to var/screenshots: look at them.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.e2e.house import ROOT_DIR, House, Member
from tests.e2e.test_live_swap import DEMO_ADAPTERS_DIR, other_version
from tests.e2e.test_main_job import PROMPTS

pytestmark = [pytest.mark.demo, pytest.mark.slow, pytest.mark.browser]
SHOTS_DIR = ROOT_DIR / "var" / "screenshots"
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 800}
# Chromium must reach nothing but this machine.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def page(house: House) -> Iterator[Page]:
    """A page whose every console error and failed request of ours fails the test at the end."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "Chromium is missing: apt-get install chromium"
    faults: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport=DESKTOP, base_url=house.url, reduced_motion="reduce")
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("response", lambda answer: answer.status >= 500 and faults.append(answer.url))
        yield page
        browser.close()
    assert not faults


def photograph(page: Page, name: str) -> None:
    SHOTS_DIR.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS_DIR / f"{name}.png")
    page.set_viewport_size(PHONE)
    page.screenshot(path=SHOTS_DIR / f"{name}-phone.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], name
    page.set_viewport_size(DESKTOP)


def test_a_person_does_the_main_job(house: House, acme: Member, page: Page, tmp_path: Path) -> None:
    tenant = house.demo["tenants"][0]
    sign_in(page, tenant["login"], tenant["password"])
    upload(page, other_version(DEMO_ADAPTERS_DIR / acme.adapters[0], tmp_path / "one", 0.97))
    activate(page)
    compare_in_the_playground(page)
    make_a_key(page)
    see_usage(page, acme)
    page.goto(f"/t/{acme.slug}/audit")
    expect(page.get_by_text("by-clicking").first).to_be_visible()
    photograph(page, "audit")


def sign_in(page: Page, login: str, password: str) -> None:
    page.goto("/")
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    photograph(page, "sign-in")
    page.get_by_label("Login").fill(login)
    page.get_by_label("Password").first.fill(password)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Adapters")).to_be_visible()
    photograph(page, "adapters")


def upload(page: Page, folder: Path) -> None:
    page.goto(page.url.split("/adapters")[0] + "/adapters/new")
    page.get_by_label("Name").fill("by-clicking")
    page.get_by_label("Adapter files").set_input_files(
        [folder / "adapter_config.json", folder / "adapter_model.safetensors"]
    )
    photograph(page, "upload")
    page.get_by_role("button", name="Upload and validate").click()
    expect(page.get_by_role("button", name="Activate v1")).to_be_visible()
    photograph(page, "adapter-ready")


def activate(page: Page) -> None:
    """The state becomes active before the person's eyes, without a reload."""
    page.get_by_role("button", name="Activate v1").click()
    expect(page.get_by_role("row", name=re.compile("version 1 Active"))).to_be_visible()
    photograph(page, "adapter-active")


def compare_in_the_playground(page: Page) -> None:
    page.goto(page.url.split("/adapters")[0] + "/playground?adapter=by-clicking")
    page.get_by_label("Prompt", exact=True).fill(PROMPTS[0])
    page.get_by_role("button", name="Send").click()
    log = page.get_by_role("log", name="Answers")
    expect(log.get_by_text("55321").last).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=60_000)
    photograph(page, "playground")


def make_a_key(page: Page) -> None:
    page.goto(page.url.split("/playground")[0] + "/keys")
    expect(page.get_by_role("heading", name="API keys")).to_be_visible()
    photograph(page, "keys")
    page.get_by_role("button", name=re.compile("key", re.I)).first.click()
    page.get_by_role("form", name="New API key").get_by_label("Name").fill("from the browser")
    page.get_by_role("form", name="New API key").get_by_role("button", name="Create").click()
    secret = page.get_by_text(re.compile(r"gh-[0-9A-Za-z]{16}-[0-9A-Za-z]{43}")).first
    expect(secret).to_be_visible()
    page.get_by_role("button", name="I have stored it").click()
    expect(secret).not_to_be_visible()


def see_usage(page: Page, acme: Member) -> None:
    page.goto(f"/t/{acme.slug}/usage")
    expect(page.get_by_role("img", name=re.compile("Usage by day"))).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("by-clicking")).first).to_be_visible()
    photograph(page, "usage")


def test_a_refused_upload_says_every_reason(acme: Member, page: Page, tmp_path: Path) -> None:
    folder = other_version(DEMO_ADAPTERS_DIR / acme.adapters[0], tmp_path / "bad", 1.0)
    config = folder / "adapter_config.json"
    config.write_text(config.read_text().replace('"use_dora": false', '"use_dora": true'))
    page.goto(f"/t/{acme.slug}/adapters/new")
    page.get_by_label("Name").fill("refused")
    page.get_by_label("Adapter files").set_input_files(
        [config, folder / "adapter_model.safetensors"]
    )
    page.get_by_role("button", name="Upload and validate").click()
    expect(page.get_by_text("use_dora").first).to_be_visible()
    photograph(page, "adapter-rejected")


def test_the_operator_sees_the_fleet(house: House, page: Page) -> None:
    page.context.clear_cookies()
    operator = house.demo["operator"]
    sign_in(page, operator["login"], operator["password"])
    page.goto("/fleet")
    expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
    photograph(page, "fleet")
