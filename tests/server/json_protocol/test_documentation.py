"""docs/json-protocol.md says what the server does: its conversation, its programs, its tables."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from journal.server.heartbeat import INTERVAL_S, PATIENCE_S
from journal.server.json_protocol import SUBPROTOCOL, messages
from tests.server.json_protocol.browser import CHROMIUM, console_of
from tests.server.json_protocol.talking import talking
from tests.server.serving import Served, serving

TEXT = (Path(__file__).parents[3] / "docs" / "json-protocol.md").read_text()
ADDRESS = "127.0.0.1:7421"

VARYING = {
    "server",
    "node_id",
    "max_message_bytes",
    "max_batch_bytes",
    "append_time_us",
    "timestamp_us",
}


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    return str(found)


def comparable(value: Any) -> Any:
    """The value without what differs from run to run."""
    if isinstance(value, dict):
        return {name: type(field) if name in VARYING else comparable(field) for name, field in value.items()}
    return [comparable(each) for each in value] if isinstance(value, list) else value


async def test_the_conversation_goes_as_it_is_written(tmp_path: Path) -> None:
    lines = block("conversation").splitlines()
    assert {line[:2] for line in lines} == {"> ", "< "}
    async with serving(tmp_path) as served, talking(served, greet=False) as talker:
        for line in lines:
            if line.startswith("> "):
                await talker.send(line[2:])
                continue
            expected = json.loads(line[2:])
            where = {name: expected[name] for name in ("id", "tail", "event") if name in expected}
            received = await talker.receive(**where)
            assert comparable(received) == comparable(expected)


def here(program: str, served: Served) -> str:
    assert program.count(ADDRESS) == 1
    return program.replace(ADDRESS, f"127.0.0.1:{served.ports['websocket']}")


async def test_the_script_runs(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        done = await trio.run_process(
            [sys.executable, "-c", here(block("python"), served)], capture_stdout=True, stderr=subprocess.STDOUT
        )
        assert done.stdout.decode().splitlines() == ["0 18.0", "1 18.5"]


@pytest.mark.slow("starts a browser")
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
async def test_the_page_runs_in_a_browser(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker:
        await talker.append("plant/1", "21.5", create={})
        page = here(block("javascript"), served)
        lines = await console_of(page, tmp_path / "profile", lines=3)
        assert lines == ["plant/1 0 21.5", "plant/2 0 19.0", "plant/2 1 19.5"]


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
async def test_a_page_that_may_not_connect_learns_nothing(tmp_path: Path) -> None:
    """The page comes by the name of another machine, as one that was made to point here would."""
    async with serving(tmp_path) as served, talking(served) as talker:
        await talker.append("plant/1", "secret", create={})
        page = here(block("javascript"), served)
        guarded = f"try {{ {page} }} catch (error) {{ console.log(error.message); }}"
        lines = await console_of(guarded, tmp_path / "profile", lines=1, host="evil.example")
        assert lines == [f"no journal at ws://127.0.0.1:{served.ports['websocket']}/"]
        assert served.engine.parts.subscriptions.count == 0


def test_the_table_of_operations_is_complete() -> None:
    cells = [line.split("|") for line in TEXT.partition("## 3.")[0].splitlines() if line.startswith("| ")]
    rows = {name.strip(): request for _, name, request, _, _ in cells[2:]}
    assert list(rows) == list(messages.OPERATIONS)
    for kind in messages.AnyRequest.__args__:
        described = set(re.findall(r"\b([a-z_]+)\b", re.sub(r"= [^,|]+", "", rows[kind.__struct_config__.tag])))
        fields = {field.encode_name for field in msgspec.structs.fields(kind)} - {"id"}
        assert fields == described - {"or"}, kind


def test_the_table_of_records_is_complete() -> None:
    table = TEXT.partition("## 3.")[2].partition("**append**")[0]
    given = {field.encode_name for field in msgspec.structs.fields(messages.NewRecord)}
    for field in given:
        assert f"`{field}`" in table or f"| {field} |" in table, field


def test_the_numbers_in_the_text_are_those_of_the_program() -> None:
    assert SUBPROTOCOL in TEXT
    assert f"silent for {PATIENCE_S:.0f} s" in TEXT
    assert f'"heartbeat_s": {INTERVAL_S}' in TEXT
