"""A program made of a table of commands."""

from __future__ import annotations

import pytest

from command_line.app import build_app, run_app

COMMANDS = {
    "one": ("tests.command_line.sample_commands:one", "Do one thing."),
    "many named": ("tests.command_line.sample_commands:named", "Take a word and an option."),
    "many fail": ("tests.command_line.sample_commands:fail", "Fail."),
}


def run(*arguments: str) -> int:
    return run_app(build_app("sample", "Do things.", COMMANDS, {"many": "Many things."}), arguments)


def test_help_lists_every_command_and_group(capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "`sample many named` needs NAME; see"),
        (["a"], "`sample many named` needs a value for --mode; see"),
        (["a", "--mode"], "`sample many named` needs a value for --mode; see"),
        (["a", "b", "c", "--mode", "x"], "`sample many named` does not take 'b', 'c'; see"),
        (["a", "--mod", "x"], "`sample many named` needs a value for --mode, and does not know --mod; see"),
        (["a", "--mode", "x", "--sze", "1"], "Unknown option: --sze. Did you mean --size? See"),
        (["a", "--mode", "x", "--size", "big"], "Invalid value"),
    ],
)
def test_wrong_words_behind_a_command_name_its_own_help(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They named the program's, spoke of `--name` for a word that has no option, and of unused tokens."""
    assert run("many", "named", *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"sample: {told}")
    assert error.endswith(" `sample many named --help`\n")


def test_the_error_of_an_unknown_command_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
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
