"""The shipped rules and dashboard, judged by Prometheus: by its promtool, and over a live house."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from prometheus_client import REGISTRY

from gateway import metrics
from tests.gateway.conftest import Customer
from tests.gateway.live import ROOT_DIR, Web, wait_for
from tests.services import free_port

FOLDER = ROOT_DIR / "monitoring"
RULES = FOLDER / "alerts.yml"
TESTS = sorted((FOLDER / "tests").glob("*.yml"))
METRIC = re.compile(r"\b(?:grafthouse|inference|lora)_[a-z_]+")
OURS = re.compile(r"grafthouse_[a-z_]+")
# They have no series before the first of their kind.
BEGIN_LATER = {
    "grafthouse_connections_dropped_total",
    "grafthouse_lost_tokens_total",
    "grafthouse_open_websockets",
    "grafthouse_refused_total",
    "grafthouse_replica_losses_total",
}
# What Prometheus adds to a name of a histogram or summary.
PARTS = re.compile(r"_(?:bucket|sum|count)$")


def program(name: str) -> str:
    """Of scripts/setup, or the machine's own."""
    found = shutil.which(str(ROOT_DIR / ".venv" / "bin" / name)) or shutil.which(name)
    assert found, f"{name} is not installed: scripts/setup prometheus"
    return found


def promtool(*arguments: object) -> str:
    command = [program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> list[tuple[str, str]]:
    """(title, expression) of the dashboard, as Grafana would send it."""
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    return [
        (panel["title"], target["expr"].replace("$__rate_interval", "1m"))
        for panel in panels
        for target in panel.get("targets", ())
    ]


def shown() -> set[str]:
    return {name for _, expression in queries() for name in METRIC.findall(expression)}


def test_it_works() -> None:
    promtool("check", "config", "prometheus.yml")
    assert f"{len(alerts())} rules found" in promtool("check", "rules", RULES)


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_an_alert_comes_when_it_should_and_only_then(path: Path) -> None:
    promtool("test", "rules", path)


def test_every_alert_has_its_test_and_says_what_it_means() -> None:
    rules = alerts()
    assert {rule["alert"] for rule in rules} == {path.stem for path in TESTS}
    for rule in rules:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(rule["annotations"]) == {"summary", "description"}


def test_every_metric_of_the_gateway_is_shown_and_no_other_is_asked_for() -> None:
    names = {name for name in REGISTRY._names_to_collectors if OURS.fullmatch(name)}
    families = {name for name in names if not name.endswith("_created")}
    known = {PARTS.sub("", name) for name in families if f"{name}_total" not in families}
    assert {PARTS.sub("", name) for name in shown() if OURS.match(name)} == known
    warned_of = {name for rule in alerts() for name in OURS.findall(rule["expr"])}
    assert {PARTS.sub("", name) for name in warned_of} <= known


def test_a_notice_is_counted_from_zero() -> None:
    """What increase() sees of a series that begins with 1 is nothing."""
    text = metrics.render(())[1].decode()
    for kind in ("tokens", "money"):
        for percent in (50, 80, 100):
            series = f'grafthouse_budget_notices_total{{kind="{kind}",percent="{percent}"}}'
            assert f"{series} " in text


@pytest.fixture
def prometheus(engine_stack: tuple[Any, Web, str], tmp_path: Path) -> Iterator[str]:
    """Prometheus with our rules, every second, over a web process and a replica: its URL."""
    engine, web, _ = engine_stack
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(RULES)]
    for scraped, url in zip(config["scrape_configs"], (web.url, engine.url), strict=True):
        scraped["static_configs"] = [{"targets": [url.removeprefix("http://")]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    options = (f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data")
    command = [program("prometheus"), *options, f"--web.listen-address=127.0.0.1:{port}"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def ask(prometheus: str, path: str, **query: str) -> Any:
    """None while it starts."""
    try:
        answer = requests.get(f"{prometheus}/api/v1/{path}", params=query, timeout=10)
    except requests.ConnectionError:
        return None
    if answer.status_code == 503:
        return None
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


@pytest.mark.slow
def test_a_live_house_answers_every_query_and_fires_no_alert(
    prometheus: str, customer: Customer
) -> None:
    def is_scraped_twice() -> bool:
        found = ask(prometheus, "query", query="count_over_time(up[1m]) > 2 and up == 1")
        return found is not None and len(found["result"]) == 2

    wait_for("two scrapes", is_scraped_twice)
    chat: Any = {"model": "bot", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    customer.client().chat.completions.create(**chat)
    wait_for("its tokens", lambda: value(prometheus, "sum(grafthouse_tokens_total)"))
    for title, expression in queries():
        assert ask(prometheus, "query", query=expression) is not None, title
    assert value(prometheus, 'grafthouse_tasks_waiting{queue="healing"}') is not None
    known = ask(prometheus, "label/__name__/values")
    assert shown() - set(known) <= BEGIN_LATER
    groups = ask(prometheus, "rules")["groups"]
    states = {rule["name"]: (rule["health"], rule["state"]) for g in groups for rule in g["rules"]}
    assert set(states) == {rule["alert"] for rule in alerts()}
    # A first load may take longer than is healthy for ten minutes: that is pending.
    assert set(states.values()) <= {("ok", "inactive"), ("ok", "pending")}, states


def value(prometheus: str, expression: str) -> float | None:
    found = ask(prometheus, "query", query=expression)["result"]
    return float(found[0]["value"][1]) if found else None
