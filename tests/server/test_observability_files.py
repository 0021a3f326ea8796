"""docs/metrics.md, the dashboard and the alert rules speak of the metrics that there are; Prometheus takes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from broker_adapter.bridge.bridges import Bridges
from broker_adapter.bridge.driver import DRIVER_STATES
from broker_adapter.cache_queue.cli.prometheus import queue_metrics
from broker_adapter.mqtt.model.statistics import DropReason, EndReason, RefusalReason
from broker_adapter.mqtt.rules.follower import Followed
from broker_adapter.mqtt.telemetry.health import Health, Serving
from broker_adapter.mqtt.telemetry.merged_metrics import supervisor_metrics
from broker_adapter.mqtt.telemetry.metrics import broker_metrics
from broker_adapter.mqtt.telemetry.store_watch import EVERY_S as STORE_ASKED_EVERY_S
from broker_adapter.mqtt.telemetry.store_watch import PATIENCE_S as STORE_PATIENCE_S
from broker_adapter.mqtt.telemetry.store_watch import StoreWatch
from broker_adapter.mqtt.transport.listeners import ListenerLimits, Listeners, Peer
from journal.access.login_methods import Credentials, Logins
from journal.server.inventory import NAMED_GROUPS, NAMED_QUEUES
from journal.server.observers import PATIENCE_S
from journal.server.statistics import CLOSING_REASONS
from journal.telemetry.exposition import Family
from journal.telemetry.log import LINES_PER_PERIOD, PERIOD_S
from tests.mqtt.serving import serving as serving_clients
from tests.server.serving import serving
from tests.server.test_metrics import counted, filled, page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "metrics.md"
DASHBOARD = ROOT / "conf" / "grafana" / "journal.json"
RULES = ROOT / "conf" / "prometheus" / "alerts.yml"
RULES_TEST = ROOT / "tests" / "journal" / "alert_rules_test.yml"

METRIC = re.compile(r"\b(?:journal|process)_[a-z0-9_]+")
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (scripts/install-peers)"
)


@attrs.frozen
class Kind:
    """What is known of a metric."""

    kind: str
    labels: frozenset[str]


async def example_page(path: Path) -> str:
    """The page of a server that has something of every kind."""
    async with serving(path) as served:
        await filled(served.engine, "a", 1)
        await filled(served.engine, "$queue/q", 1)
        await served.engine.commit_cursor("a", "group/g", 0, None)
        await counted(served)
        return await page(served)


async def broker_families() -> list[Family]:
    """What a broker that accepts clients shows."""

    async def nobody_comes(_stream: trio.abc.Stream, _peer: Peer) -> None:
        raise AssertionError

    async with serving_clients() as served:
        health = Health("memory:", lambda: False)
        health.store = StoreWatch(served.adapter)
        listeners = Listeners(nobody_comes, ListenerLimits())
        health.serving = Serving(served.broker, Bridges(served.adapter, [], "b"), listeners, lambda: Followed(0))
        return await broker_metrics(health, 1, Logins(Credentials()))


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    """Every metric of a server, a broker and `journal queue metrics`, by the name that it is asked for with."""
    text = trio.run(example_page, tmp_path_factory.mktemp("metrics"))
    # A broker of several processes has one more.
    restarts = [family for family in supervisor_metrics({1: 0}, ()) if family.kind == "counter"]
    families = [*queue_metrics([]), *trio.run(broker_families), *restarts]
    others = {family.name: Kind(family.kind, frozenset(family.labels)) for family in families}
    found = kinds(text)
    # The figures of a process are the same in all programs.
    assert {name for name in others if name.startswith("process_")} == {n for n in found if n.startswith("process_")}
    return found | others


def kinds(text: str) -> dict[str, Kind]:
    found = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = Kind(
            family.type, frozenset(label for sample in family.samples for label in sample.labels if label != "le")
        )
    return found


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def without_suffix(name: str, metrics: dict[str, Kind]) -> str:
    """The metric that a name in an expression is of: histograms are asked for by their parts."""
    part = re.sub(r"_(?:bucket|sum|count)$", "", name)
    return part if part in metrics and metrics[part].kind == "histogram" else name


def check_expression(expression: str, metrics: dict[str, Kind]) -> None:
    """Every metric exists, counters are never shown as they are, and selected labels exist."""
    for match in re.finditer(r"(?P<name>\b(?:journal|process)_[a-z0-9_]+)(?:\{(?P<labels>[^}]*)\})?", expression):
        name = without_suffix(match["name"], metrics)
        assert name in metrics, f"{name} in {expression!r} is no metric"
        labels = set(re.findall(r"(\w+)=?[=~!]", match["labels"] or ""))
        assert labels <= metrics[name].labels | {"job", "instance"}, expression
        if metrics[name].kind in ("counter", "histogram"):
            assert re.search(rf"(?:rate|increase)\({match['name']}[^)]*\[", expression), expression
    for grouping in re.findall(r"by \(([^)]*)\)", expression):
        names = [without_suffix(found, metrics) for found in METRIC.findall(expression)]
        known = set().union(*(metrics[name].labels for name in names)) | {"job", "instance", "le"}
        assert set(re.findall(r"\w+", grouping)) <= known, expression


# Documentation


def documented() -> dict[str, tuple[str, set[str]]]:
    """Kind and labels by name, as the tables of docs/metrics.md have them."""
    rows = re.findall(r"^\| `((?:journal|process)_\w+)(?:\{(.*)\})?` \| (\w+) \|", DOCS.read_text(), re.MULTILINE)
    assert len(rows) == len({name for name, _, _ in rows}), "a metric is there twice"
    return {name: (kind, set(re.findall(r"\w+", labels))) for name, labels, kind in rows}


def test_every_metric_of_servers_and_brokers_is_in_the_tables_and_they_have_no_other(metrics: dict[str, Kind]) -> None:
    of_queues = {name for name in metrics if name.startswith("journal_queue_")}
    assert documented() == {
        name: (kind.kind, set(kind.labels)) for name, kind in metrics.items() if name not in of_queues
    }


def test_every_alert_is_in_the_table_and_it_has_no_other() -> None:
    assert re.findall(r"^\| `(Journal\w+)` \|", DOCS.read_text(), re.MULTILINE) == alerts()


def test_numbers_in_the_text_are_those_of_the_program() -> None:
    text = " ".join(DOCS.read_text().split())
    assert NAMED_GROUPS == NAMED_QUEUES
    assert f"only the {NAMED_GROUPS} that are furthest behind" in text
    assert f"shown {LINES_PER_PERIOD} times in {PERIOD_S:.0f} seconds" in text
    assert f"after {PATIENCE_S:.0f} s it is a reason" in text
    assert f"asked once a second, and has {STORE_PATIENCE_S:.0f} s" in text
    assert STORE_ASKED_EVERY_S == 1
    for reason in (
        *CLOSING_REASONS,
        *get_args(DropReason),
        *get_args(RefusalReason),
        *get_args(EndReason),
        *DRIVER_STATES,
    ):
        assert f"`{reason}`" in text


# Alert rules


def alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", RULES.read_text())


def rule_expressions() -> list[str]:
    text = RULES.read_text()
    return [" ".join(found.split()) for found in re.findall(r"expr: (?:\|\n)?((?:.|\n)*?)\n +(?:for|labels):", text)]


def test_rules_speak_of_metrics_that_there_are(metrics: dict[str, Kind]) -> None:
    expressions = rule_expressions()
    assert len(expressions) == len(alerts())
    for expression in expressions:
        check_expression(expression, metrics)


def test_every_rule_is_tested() -> None:
    tested = RULES_TEST.read_text()
    assert [alert for alert in alerts() if f'alertname="{alert}"' not in tested] == []


@needs_promtool
def test_prometheus_takes_the_rules() -> None:
    promtool("check", "rules", str(RULES))


@needs_promtool
def test_prometheus_accepts_the_scrape_configuration() -> None:
    """The files that it names are not here."""
    promtool("check", "config", "--syntax-only", str(RULES.parent / "scrape.yml"))


@pytest.mark.slow("runs rules of Prometheus")
@needs_promtool
def test_rules_fire_when_they_should_and_not_when_a_node_is_well() -> None:
    promtool("test", "rules", str(RULES_TEST))


# Dashboard


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def targets() -> Iterator[str]:
    for panel in panels():
        for target in panel.get("targets", []):
            yield target["expr"]


def test_the_dashboard_speaks_of_metrics_that_there_are(metrics: dict[str, Kind]) -> None:
    expressions = list(targets())
    assert len(expressions) > 30
    for expression in expressions:
        check_expression(expression, metrics)


def test_the_dashboard_shows_all_that_servers_and_brokers_tell(
    metrics: dict[str, Kind],
) -> None:
    shown = {without_suffix(name, metrics) for expression in targets() for name in METRIC.findall(expression)}
    not_shown = {
        # What others are compared with in alerts, or what is in another figure.
        "journal_commit_groups_total",
        "journal_committed_lsn",
        "journal_connections_opened_total",
        "journal_loop_stalls_total",
        "journal_clock_difference_seconds",
        "journal_append_time_ahead_seconds",
        "journal_loop_long_steps_total",
        "journal_cursors",
        "journal_census_seconds",
        "journal_checkpoints_total",
        "journal_delta_version",
        "journal_delta_commit_timestamp_seconds",
        "journal_queue_driven",
        "journal_broker_bans",
        "journal_broker_connections_opened_total",
        "journal_broker_failed_shards",
        "journal_broker_loop_stalls_total",
        "journal_broker_rules_refused",
        "journal_broker_rules_version",
        "journal_broker_store_losses_total",
        "journal_broker_store_retries_total",
        "journal_broker_store_state_seconds",
        "process_virtual_memory_bytes",
    }
    assert set(metrics) - shown == not_shown


def test_panels_have_what_a_reader_needs_and_do_not_overlap() -> None:
    found = panels()
    assert len({panel["id"] for panel in found}) == len(found)
    for panel in found:
        assert panel["title"]
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["description"]
    for one, other in combinations([panel["gridPos"] for panel in found], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
        assert one["x"] + one["w"] <= 24


@needs_promtool
def test_prometheus_understands_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": text.replace("$__rate_interval", "5m").replace("$instance", ".*")}
        for number, text in enumerate(targets())
    ]
    # JSON is YAML as well.
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(path))
