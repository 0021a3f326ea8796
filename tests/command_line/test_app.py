"""A program made of a table of commands."""

from __future__ import annotations

import pytest

from command_line.app import build_app, run_app

COMMANDS = {
    "one": ("tests.command_line.sample_commands:one", "Do one thing."),
    "many fail": ("tests.command_line.sample_commands:fail", "Fail."),
}


def run(*arguments: str) -> int:
    return run_app(build_app("sample", "Do things.", COMMANDS, {"many": "Many things."}), arguments)


def test_help_tells_every_command_and_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    told = capsys.readouterr().out
    for words in ["Do things.", "one", "Do one thing.", "many", "Many things.", "--debug"]:
        assert words in told


def test_what_a_command_returns_is_the_exit_status() -> None:
    assert run("one") == 0
    assert run("one", "--status", "3") == 3


def test_wrong_usage_is_one_line_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("two") == 2
    told = capsys.readouterr().err
    assert told.startswith("sample: ")
    assert told.endswith("see `sample --help`\n")
    assert told.count("\n") == 1


def test_an_unknown_command_is_told_all_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """The list was cut after eight, with nothing behind the last comma."""
    commands = {f"group c{number}": COMMANDS["one"] for number in range(12)}
    app = build_app("sample", "Do things.", commands, {"group": "A group."})
    assert run_app(app, ["group", "c99"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("sample: `sample group` has no command 'c99'. Did you mean 'c9'? It has c0, c1, ")
    assert told.endswith(", c10, c11; see `sample group --help`\n")


def test_debug_may_stand_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("many", "--debug", "fail") == 1
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert told.endswith("sample: it failed\n")
    assert run("many", "fail") == 1
    assert capsys.readouterr().err == "sample: it failed\n"
