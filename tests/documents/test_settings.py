"""Settings that pages show are taken by the program that they are for; other data that they show is what it says."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_adapter.mqtt.config import load_broker_config
from journal.settings.server_file import load_config
from spark_export.positions import StreamPosition
from spark_export.tables.config_file import load_tables
from tests.documents.pages import PAGES, Block, blocks_of
from tests.patience import PATIENCE_S

OF_THE_BROKER = ("README.md", "docs/bridges.md", "docs/mqtt.md", "docs/sinks.md")


def check_toml(block: Block, place: Path) -> None:
    """The table of a sink belongs to a bridge, which its page does not show again."""
    file = place / "settings.toml"
    bridge = '[[bridge]]\nname = "shown"\ntopics = ["#"]\n' if block.text.startswith("[bridge.sink]") else ""
    file.write_text(bridge + block.text)
    if block.page == "docs/tables.md":
        load_tables(file)
    elif block.page in OF_THE_BROKER:
        load_broker_config(file)
    else:
        load_config(file)


def check_yaml(block: Block, place: Path) -> None:
    """Jobs of Prometheus."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (scripts/install-peers)")
    file = place / "prometheus.yml"
    file.write_text(f"scrape_configs:\n{block.text}")
    command = ["promtool", "check", "config", "--syntax-only", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr


def check_ini(block: Block, _place: Path) -> None:
    """A unit of systemd: sections, and settings with a value."""
    lines = [line for line in block.text.splitlines() if line and not line.startswith("#")]
    assert lines[0].startswith("[")
    assert all("=" in line for line in lines[1:])


def check_json(block: Block, _place: Path) -> None:
    """The position of a stream."""
    assert StreamPosition.decode(json.loads(block.text)).encode() == json.loads(block.text)


PARSED: dict[str, Callable[[Block, Path], None]] = {
    "toml": check_toml,
    "yaml": check_yaml,
    "ini": check_ini,
    "json": check_json,
}
SHOWN = [block for page in PAGES for block in blocks_of(page) if block.language in PARSED]


@pytest.mark.parametrize("block", SHOWN, ids=str)
def test_what_is_shown_is_taken(block: Block, tmp_path: Path) -> None:
    PARSED[block.language](block, tmp_path)
