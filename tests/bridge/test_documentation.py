"""docs/bridges.md documents all sources, metrics and settings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from broker_adapter.bridge.breaker import BreakerSettings
from broker_adapter.bridge.config import BridgeTable
from broker_adapter.bridge.projection import DEFAULT_FIELDS, SOURCES, Projection
from broker_adapter.cache_queue.cli.prometheus import queue_metrics
from broker_adapter.mqtt.config import load_broker_config

DOCS = Path(__file__).parents[2] / "docs" / "bridges.md"


def test_the_example_is_a_configuration(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    path = tmp_path / "broker.toml"
    path.write_text(example)
    (table,) = load_broker_config(path).bridge
    assert table.name == tomllib.loads(example)["bridge"][0]["name"]


def test_every_source_is_in_the_table_and_the_table_has_no_other() -> None:
    table = DOCS.read_text().split("| source | what |")[1].split("\n\n")[0]
    told = {
        source
        for row in table.splitlines()
        for source in re.findall(r"`([^`]+)`", row.split("|")[1] if "|" in row else "")
    }
    for source in told:
        Projection({"column": source.replace("SOURCE ?? JSON", "$.value ?? 0")})
    shapes = {re.sub(r"\[-?\d+\]$", "[N]", source) for source in told}
    shapes = {"$.path" if shape.startswith("$") else shape for shape in shapes}
    assert shapes == set(SOURCES)


def test_the_usual_columns_are_named() -> None:
    text = " ".join(DOCS.read_text().split())
    *first, last = DEFAULT_FIELDS
    assert "Without it rows have " + ", ".join(f"`{name}`" for name in first) + f" and `{last}`." in text


def test_every_metric_is_in_the_table() -> None:
    told = set(re.findall(r"`(journal_queue_\w+)(?:\{\w+\})?`", DOCS.read_text()))
    assert told == {family.name for family in queue_metrics([])}


def test_settings_that_are_named_exist() -> None:
    settings = set(BridgeTable.__annotations__) | {"table", "password_file", "url"}
    text = DOCS.read_text()
    for name in (
        "min_backoff_ms",
        "max_backoff_s",
        "failures_to_open",
        "health_interval_s",
        "max_rate",
        "window",
        "drive",
    ):
        assert name in settings
        assert f"`{name}" in text
    assert BreakerSettings().min_backoff_s == 0.2
