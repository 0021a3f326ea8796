"""Every failure is one line on stderr and an exit status."""

from __future__ import annotations

import socket

import pytest

from command_line.boundary import CommandError, OutputClosedError, UsageError, run_guarded, unreached
from shards.errors import LimitExceededError


def raising(error: BaseException):
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UsageError("say it otherwise"), 2, "say it otherwise"),
        (CommandError("no server"), 1, "no server"),
        (LimitExceededError("two\n lines\n"), 1, "two; lines"),
        (FileNotFoundError(2, "No such file or directory", "/x"), 1, "/x: No such file or directory"),
        (OSError("all attempts failed"), 1, "all attempts failed"),
        (ExceptionGroup("inner", [ExceptionGroup("deeper", [CommandError("told once")])]), 1, "told once"),
        (ExceptionGroup("", [ValueError("noise"), LimitExceededError("the reason")]), 1, "the reason"),
    ],
)
def test_an_error_is_one_line(error, status, line, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(raising(error), program="journal") == status
    assert capsys.readouterr() == ("", f"journal: {line}\n")


def test_a_program_explains_the_errors_that_it_knows(capsys: pytest.CaptureFixture[str]) -> None:
    def explain(error: BaseException) -> str | None:
        return "there is no such key" if isinstance(error, KeyError) else None

    errors = ExceptionGroup("", [ValueError("noise"), KeyError("k")])
    assert run_guarded(raising(errors), program="keys", explain=explain) == 1
    assert capsys.readouterr().err == "keys: there is no such key\n"


def test_a_programming_error_names_its_class_and_how_to_see_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(raising(ZeroDivisionError("division by zero")), program="journal") == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "ZeroDivisionError: division by zero" in error
    assert "--debug" in error


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    run_guarded(raising(CommandError("no server")), program="journal", debug=True)
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert error.endswith("journal: no server\n")


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), BaseExceptionGroup("", [KeyboardInterrupt(), LimitExceededError("too late")])]
)
def test_an_interrupt_says_nothing(error, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(raising(error), program="journal") == 130
    assert capsys.readouterr() == ("", "")


def test_success_is_the_status_of_the_command() -> None:
    assert run_guarded(lambda: 0, program="journal") == 0
    assert run_guarded(lambda: 1, program="journal") == 1


def test_a_reader_that_went_away_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(raising(OutputClosedError()), program="journal") == 141
    assert capfd.readouterr().err == ""


def test_a_host_that_is_not_known_is_no_server_that_does_not_run() -> None:
    last = ConnectionError("no server at tcp://store.invalid:7420")
    last.__cause__ = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    error = ConnectionError("gave up")
    error.__cause__ = last
    told = str(unreached("store.invalid", error))
    assert told == (
        "the host in the address store.invalid is not known: Name or service not known; name the server with "
        "--server HOST:PORT"
    )
