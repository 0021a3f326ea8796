"""The command itself: help, version, wrong usage, start-up time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from journal.cli.main import COMMANDS, RENAMED, run
from journal.client.address import DEFAULT_PORTS


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


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_command_that_was_renamed_is_answered_with_its_new_name(
    old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new in COMMANDS
    assert old not in COMMANDS
    assert run([*old.split(), "plant/1"]) == 2
    assert capsys.readouterr().err == (
        f"journal: `journal {old}` has a new name: `journal {new}`; see `journal {new} --help`\n"
    )


def test_an_address_without_a_port_is_shown_with_the_one_that_was_tried(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEFAULT_PORTS, "tcp", 1)
    assert run(["shard", "list", "--server", "127.0.0.1"]) == 1
    assert "no server answers at 127.0.0.1 (port 1); " in capsys.readouterr().err
