"""What the three programs have in common: help that is complete, and wrong usage reported in one line."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import pytest

import broker_adapter.mqtt.cli.main
import journal.cli.main
import spark_export.cli.main


@attrs.frozen
class Program:
    name: str
    commands: dict[str, tuple[str, str]]
    run: Callable[[Sequence[str]], int]


def program(name: str, module: object) -> Program:
    return Program(name, module.COMMANDS, module.run)  # type: ignore[attr-defined]


JOURNAL: Final = program("journal", journal.cli.main)
BROKER: Final = program("journal-broker", broker_adapter.mqtt.cli.main)
SPARK: Final = program("journal-spark", spark_export.cli.main)
PROGRAMS: Final = (JOURNAL, BROKER, SPARK)
COMMANDS: Final = [(each, command) for each in PROGRAMS for command in each.commands]


def told_by(value: object) -> str | None:
    """How a parameter is named in the name of its test."""
    return value.name if isinstance(value, Program) else None


@pytest.mark.parametrize("program", PROGRAMS, ids=told_by)
def test_help_names_every_command(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["--help"]) == 0
    told = capsys.readouterr().out
    for command in program.commands:
        assert f" {command.split()[0]} " in told


@pytest.mark.parametrize(("program", "command"), COMMANDS, ids=told_by)
def test_every_command_explains_itself(program: Program, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run([*command.split(), "--help"]) == 0
    assert f"{program.name} {command}" in capsys.readouterr().out


@pytest.mark.parametrize(("program", "command"), COMMANDS, ids=told_by)
def test_the_table_of_commands_says_what_the_commands_say(program: Program, command: str) -> None:
    path, help_line = program.commands[command]
    module, _, function = path.partition(":")
    described = getattr(importlib.import_module(module), function).__doc__
    assert described.splitlines()[0] == help_line


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (JOURNAL, ["nonsense"]),
        (JOURNAL, ["read"]),
        (JOURNAL, ["read", "x", "--nonsense"]),
        (JOURNAL, ["read", "x", "--count", "many"]),
        (JOURNAL, ["read", "x", "--from", "yesterday"]),
        (JOURNAL, ["append", "x", "--ack", "perhaps"]),
        (JOURNAL, ["append", "x", "--batch", "0"]),
        (JOURNAL, ["shard", "create", "x", "--mode", "tape"]),
        (JOURNAL, ["shard", "create", "x", "--max-age", "soon"]),
        (JOURNAL, ["cursor", "set", "x", "c", "here"]),
        (JOURNAL, ["serve"]),
        (BROKER, ["nonsense"]),
        (BROKER, ["--nonsense"]),
        (BROKER, ["--set", "level=debug"]),
        (BROKER, ["--debug", "--set", "level=debug"]),
        (BROKER, ["passwd"]),
        (BROKER, ["passwd", "file"]),
        (BROKER, ["passwd", "file", "a:b"]),
        (BROKER, ["apply"]),
        (BROKER, ["rules", "plant/+"]),
        (BROKER, ["rules", "$SYS/x"]),
        (BROKER, ["rules", "$delayed/soon/x"]),
        (BROKER, ["check", "surplus"]),
        (SPARK, ["nonsense"]),
        (SPARK, ["sql"]),
        (SPARK, ["sql", "select 1"]),
        (SPARK, ["sql", "/x", "select 1", "--json", "--csv"]),
        (SPARK, ["sql", "/x", "select 1", "--limit", "many"]),
        (SPARK, ["sql", "/", "select 1", "--conf", "spark.x"]),
        (SPARK, ["sql", "/x", "select 1", "more"]),
    ],
    ids=told_by,
)
def test_wrong_usage_is_one_line_and_status_2(
    program: Program, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOURNAL_SERVER", raising=False)
    assert program.run(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[-1].startswith(f"{program.name}: ")
    assert told.err.count("\n") == 1 or "--debug" in arguments
