"""The alert rules and the dashboard against what a real server exports, as promtool and a real Prometheus see it."""

import contextlib
import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from aerie.bench.targets import free_port
from tests.docker.conftest import DOCKER, ask, found, metric_names, scrape
from tests.e2e.conftest import Server
from tests.patience import PATIENCE

RULES = DOCKER / "prometheus/alerts.yaml"
CASES = DOCKER / "prometheus/alerts_test.yaml"
DASHBOARD = DOCKER / "grafana/dashboards/aerie.json"
Query = Callable[..., list[dict[str, Any]]]


def alerts() -> dict[str, str]:
    """Expressions by name."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def dashboard_expressions() -> list[str]:
    """What its panels ask, with Grafana's variables filled in."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [
        text.replace("$instance", ".*").replace("$__rate_interval", "30s").replace("$__range", "1m") for text in asked
    ]


def checked(promtool: str, *words: str, folder: Path = DOCKER / "prometheus") -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool, *words], cwd=folder, capture_output=True, text=True, check=False)


def test_prometheus_takes_config_and_rules(promtool: str) -> None:
    done = checked(promtool, "check", "config", "prometheus.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_on_its_fault_and_is_silent_without(promtool: str, tmp_path: Path) -> None:
    done = checked(promtool, "test", "rules", CASES.name)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = [
        case for test in yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"] for case in test["alert_rule_test"]
    ]
    assert {case["alertname"] for case in cases if "exp_alerts" in case} == set(alerts())
    assert {case["alertname"] for case in cases if "exp_alerts" not in case} == set(alerts())


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("aerie:num_preemptions_total", "aerie:num_preemptions"),
        ("> 0.95", "> 0.98"),
        ("0.5 * (aerie:spec", "0.2 * (aerie:spec"),
        ("absent(up", "absent_over_time(down"),
    ],
)
def test_a_wrong_rule_is_seen(promtool: str, tmp_path: Path, right: str, wrong: str) -> None:
    rules = RULES.read_text(encoding="utf-8")
    assert right in rules
    (tmp_path / RULES.name).write_text(rules.replace(right, wrong), encoding="utf-8")
    (tmp_path / CASES.name).write_text(CASES.read_text(encoding="utf-8"), encoding="utf-8")
    assert checked(promtool, "test", "rules", CASES.name, folder=tmp_path).returncode != 0


def test_what_rules_and_dashboard_name_is_exported(server: Server) -> None:
    exported = metric_names(scrape(server.url))
    named = metric_names(" ".join([*alerts().values(), *dashboard_expressions()]))
    assert len(named) > 30
    assert not named - exported, "a real scrape does not have these"


@pytest.fixture(scope="module")
def query(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Query]:
    """A Prometheus with our rules that has scraped the server before and after some requests, asked for the moment
    when it had: afterwards a stalled machine may look like a server that is down.
    """
    program = found("prometheus", "Debian's package has that name")
    folder = tmp_path_factory.mktemp("prometheus")
    settings = yaml.safe_load((DOCKER / "prometheus/prometheus.yaml").read_text(encoding="utf-8"))
    settings["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    job = settings["scrape_configs"][0]
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": [urllib.parse.urlsplit(server.url).netloc]}]
    (folder / RULES.name).write_text(RULES.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    words = [program, "--config.file=prometheus.yaml", "--storage.tsdb.path=data", f"--web.listen-address={address}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log)
    try:
        query = _asking(f"http://{address}")
        _wait_for(lambda: query('count_over_time(up{job="aerie"}[1m]) >= 2'), folder / "log")
        ask(server)
        since = time.time()
        steady = 'timestamp(up{job="aerie"}) * (min_over_time(up{job="aerie"}[3s]) == 1)'
        scraped = _wait_for(lambda: query(f"{steady} > {since + 2}"), folder / "log")
        yield partial(query, at=scraped[0]["value"][0])
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _asking(url: str) -> Query:
    def query(expression: str, at: float | None = None) -> list[dict[str, Any]]:
        words = urllib.parse.urlencode({"query": expression} | ({} if at is None else {"time": at}))
        try:
            with urllib.request.urlopen(f"{url}/api/v1/query?{words}", timeout=PATIENCE) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return found
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it has only been started
                return []
            raise AssertionError(f"{expression}: {error.read().decode()}") from None

    return query


def _wait_for(look: Callable[[], list[dict[str, Any]]], log: Path) -> list[dict[str, Any]]:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # it has only been started
            if found := look():
                return found
        time.sleep(0.1)
    raise AssertionError(log.read_text(encoding="utf-8"))


def test_every_panel_has_something_to_show(query: Query) -> None:
    for expression in dashboard_expressions():
        found = query(expression.removesuffix(" > 0"))
        assert found, f"empty: {expression}"
    acceptance = next(text for text in dashboard_expressions() if text.startswith("1 + sum("))
    assert 1 < float(query(acceptance)[0]["value"][1]) < 6


def test_no_alert_fires_on_a_server_that_works(query: Query) -> None:
    """What is about speed may stir on a slow machine, but has no ten minutes to fire."""
    assert not query('ALERTS{alertstate="firing"}')
    for name, expression in alerts().items():
        if not name.startswith(("AerieSlow", "AerieQueues", "AerieDeviceWaits")):
            assert not query(expression), name
    assert query("count(aerie:info)")[0]["value"][1] == "1"


def test_the_parts_of_each_alert_exist(query: Query) -> None:
    """An expression over a metric that nobody exports is silent for ever."""
    for name, expression in alerts().items():
        for selector in re.findall(r"(?:(?:aerie:|process_)\w+|\bup)(?:\{[^}]*\})?", expression):
            assert query(selector), f"{name}: {selector}"
