"""The command itself: help, wrong usage, and what it says without a place to read."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from spark_export.cli.main import COMMANDS, run
from spark_export.cli.place import Place


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    told = capsys.readouterr().out
    for command in COMMANDS:
        assert f" {command} " in told


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert f"journal-spark {command}" in capsys.readouterr().out


@pytest.mark.parametrize(("path", "help_line"), COMMANDS.values())
def test_the_table_of_commands_says_what_the_commands_say(path: str, help_line: str) -> None:
    module, _, function = path.partition(":")
    described = getattr(importlib.import_module(module), function).__doc__
    assert described.splitlines()[0] == help_line


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["sql"],
        ["sql", "select 1"],
        ["sql", "/x", "select 1", "--json", "--csv"],
        ["sql", "/x", "select 1", "--limit", "many"],
        ["sql", "/x", "select 1", "--conf", "spark.x"],
        ["sql", "/x", "select 1", "more"],
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOURNAL_SERVER", raising=False)
    assert run(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("journal-spark: ")
    assert told.err.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "server", "environment", "place"),
    [
        ("/data", None, {}, Place("/data", None)),
        (None, "h:1", {}, Place(None, "h:1")),
        ("/data", "h:1", {}, Place("/data", "h:1")),
        (None, None, {"JOURNAL_SERVER": "e:1"}, Place(None, "e:1")),
        ("/data", None, {"JOURNAL_SERVER": "e:1"}, Place("/data", None)),
    ],
)
def test_the_place_is_what_the_arguments_say_and_else_the_environment(path, server, environment, place) -> None:
    assert Place.parse(path, server, environment) == place


def test_help_needs_neither_spark_nor_arrow() -> None:
    program = (
        "import sys; from spark_export.cli.main import run; run(['--help']); "
        "print(*[name for name in ('trio', 'pyspark', 'pyarrow', 'numpy', 'rocksdict') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert told.splitlines()[-1] == ""
