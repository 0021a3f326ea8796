"""The command itself: help, version, wrong usage, start-up time."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from journal.cli.main import COMMANDS, run


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    told = capsys.readouterr().out
    for command in [
        "serve",
        "shard",
        "append",
        "read",
        "tail",
        "cursor",
        "backup",
        "restore",
        "check",
        "compact",
        "dump",
        "bench",
    ]:
        assert f" {command} " in told


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    assert f"journal {command}" in capsys.readouterr().out


@pytest.mark.parametrize(("path", "help_line"), COMMANDS.values())
def test_the_table_of_commands_says_what_the_commands_say(path: str, help_line: str) -> None:
    module, _, function = path.partition(":")
    described = getattr(importlib.import_module(module), function).__doc__
    assert described.splitlines()[0] == help_line


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["read"],
        ["read", "x", "--nonsense"],
        ["read", "x", "--count", "many"],
        ["read", "x", "--from", "yesterday"],
        ["append", "x", "--ack", "perhaps"],
        ["append", "x", "--batch", "0"],
        ["shard", "create", "x", "--mode", "tape"],
        ["shard", "create", "x", "--max-age", "soon"],
        ["cursor", "set", "x", "c", "here"],
        ["serve"],
    ],
)
def test_wrong_usage_is_one_line_and_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("journal: ")
    assert told.err.count("\n") == 1


def test_a_server_that_is_not_there_is_one_line_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    # Port 1 of the loopback is never a journal.
    assert run(["shard", "list", "--server", "127.0.0.1:1"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "127.0.0.1:1" in error
    assert "journal serve" in error


def test_help_and_version_import_no_event_loop_and_no_client() -> None:
    program = (
        "import sys; from journal.cli.main import run; run(['--help']); "
        "print(*[name for name in ('trio', 'journal.client', 'journal.server', 'rocksdict') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert told.splitlines()[-1] == ""
