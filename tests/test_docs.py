"""The docs are true where a program can tell: settings, rooms, pictures, links."""

import re
from pathlib import Path

import pytest

ROOT_DIR = Path(__file__).resolve().parent.parent
ROOMS = (
    *("kernels", "inference", "tenants", "adapters", "gateway", "frontend", "demo", "grafthouse"),
    "tests",
)
DOCS = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"),
    "monitoring/README.md",
    *(
        f"docs/{name}.md"
        for name in (
            *("access-log", "clients", "errors", "operating", "serving", "sockets"),
            *("troubleshooting", "uploads"),
        )
    ),
    *(f"{room}/README.md" for room in ROOMS),
)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def read_settings() -> set[str]:
    text = (ROOT_DIR / "gateway" / "settings.py").read_text()
    read = re.findall(r'env_(?:bool|int|list|choice)\(\s*"([A-Z0-9_]+)"', text)
    return {*read, *re.findall(r'os\.environ\.get\(\s*"([A-Z0-9_]+)"', text)}


def test_every_setting_is_in_the_readme_and_no_other() -> None:
    table = (ROOT_DIR / "README.md").read_text().split("## Settings")[1].split("## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`([A-Z0-9_]+)`", row)}
    assert documented == read_settings()


@pytest.mark.parametrize("name", DOCS)
def test_links_lead_somewhere(name: str) -> None:
    path = ROOT_DIR / name
    for target in LINK.findall(path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{name} → {target}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_rooms_readme_is_short(room: str) -> None:
    text = (ROOT_DIR / room / "README.md").read_text()
    assert len(text.splitlines()) <= 60, room


def test_what_troubleshooting_names_is_there() -> None:
    """Its tests, metrics, flags and codes."""
    text = (ROOT_DIR / "docs" / "troubleshooting.md").read_text()
    sources = [
        path.read_text()
        for room in ("inference", "adapters", "gateway")
        for path in (ROOT_DIR / room).rglob("*.py")
    ]
    for name in re.findall(r"`([^`]+)`", text):
        if name.startswith("tests/"):
            path, _, test = name.partition("::")
            assert f"def {test}" in (ROOT_DIR / path).read_text(), name
        elif re.fullmatch(r"[a-z]+_[a-z_]+|--[a-z-]+", name):
            # Counters are named without their ending in the code.
            word = name.removesuffix("_total")
            assert any(word in source for source in sources), name
