"""Data goes to stdout and nothing else does."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import pytest

from command_line.boundary import OUTPUT_CLOSED, UsageError
from command_line.output import (
    Table,
    confirmed,
    note,
    progress,
    redrawing,
    waiting,
    write_json,
    write_lines,
    write_table,
)


def test_lines_are_written_byte_for_byte(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write_lines([b"\xff", b"", b"two"])
    assert capfdbinary.readouterr().out == b"\xff\n\ntwo\n"


class Terminal(io.TextIOWrapper):
    """Stands for stdout on a terminal."""

    def isatty(self) -> bool:
        return True


def terminal_for(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """What is written to stdout from now on, which is a terminal."""
    written = io.BytesIO()
    stdout = Terminal(written, encoding="utf-8", write_through=True)
    monkeypatch.setattr(sys, "stdout", stdout)
    return written


ATTACK = b"\x1b]52;c;cm0gLXJm\x07 \x1b[2J\r\x9b3J \xc2\x9b3J \xe2\x80\xae\x7f\x00"
SHOWN = rb"\x1b]52;c;cm0gLXJm\x07 \x1b[2J\r\x9b3J \x9b3J \u202e\x7f\x00"


def test_control_characters_do_not_reach_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_for(monkeypatch)
    write_lines([ATTACK, "22.5 °C\tok\nnext".encode()])
    assert terminal.getvalue() == SHOWN + b"\n" + "22.5 °C\tok\nnext\n".encode()
    write_table(("name",), [(ATTACK.decode("utf-8", "backslashreplace"),)])
    assert b"\x1b]52" not in terminal.getvalue()
    assert rb"\x1b]52" in terminal.getvalue()


def test_a_terminal_gets_everything_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_for(monkeypatch)
    write_lines([ATTACK], raw=True)
    assert terminal.getvalue() == ATTACK + b"\n"


def test_a_pipe_gets_everything(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write_lines([ATTACK])
    assert capfdbinary.readouterr().out == ATTACK + b"\n"


def test_messages_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    note("journal", "shard \x1b[2J: gone\nnext line")
    assert capsys.readouterr().err == "journal: shard \\x1b[2J: gone\nnext line\n"


def test_json_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    write_json({"a": "x\ny", "b": [1]})
    assert capfd.readouterr().out == '{"a":"x\\ny","b":[1]}\n'


def test_a_table_in_a_pipe_cuts_nothing_and_takes_cells_literally(capsys: pytest.CaptureFixture[str]) -> None:
    name = "[bold]" + "x" * 150
    write_table(("shard", "size"), [(name, "1 B")], numeric=("size",))
    assert name in capsys.readouterr().out


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("records") as tick, waiting("something"):
        tick(5)
    assert capsys.readouterr() == ("", "")


def test_tables_that_are_redrawn_come_one_after_the_other_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with redrawing() as redraw:
        redraw([Table(("a",), [("first",)])])
        redraw([Table(("a",), [("second",)]), Table(("b",), [("third",)])])
    told = capsys.readouterr().out
    assert told.index("first") < told.index("second") < told.index("third")


def test_no_question_is_asked_where_there_is_no_terminal() -> None:
    with pytest.raises(UsageError, match="Delete it? There is no terminal for a confirmation: add".replace("?", r"\?")):
        confirmed("Delete it?")


def test_a_name_stays_whole_in_whatever_encoding_and_width() -> None:
    """One without its characters was an internal error, a narrow terminal cut it."""
    name = "größe-of-the-thing-日本"
    program = f"from command_line.output import write_table; write_table(('name', 'count'), [({name!r}, '12')])"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=True)
    assert name.encode("ascii", "backslashreplace") in done.stdout
    near, far = pty.openpty()
    environment = {**os.environ, "COLUMNS": "16", "PYTHONIOENCODING": "utf-8", "TERM": "dumb"}
    subprocess.run([sys.executable, "-c", program], stdout=far, env=environment, check=True)
    os.close(far)
    shown = os.read(near, 4096).decode()
    os.close(near)
    cells = [line[: line.find("  ")] if "  " in line else line for line in shown.splitlines()[2:]]
    assert "".join(cell.strip() for cell in cells) == name


def test_an_output_that_takes_nothing_is_named() -> None:
    program = (
        "import sys; from command_line.boundary import run_guarded; from command_line.output import write_table;"
        "sys.exit(run_guarded(lambda: write_table(('a',), [('1',)]) or 0, program='p'))"
    )
    # A variable of the environment may switch buffering off, and with it the flush at exit that failed once more.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, env=environment, check=False
        )
    assert done.returncode == 1
    assert done.stderr == b"p: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("count", [1, 3])
def test_tables_for_a_reader_that_is_gone_end_as_lines_do(count: int) -> None:
    """Rich ended the program with a status of its own, which was reported as an internal error."""
    program = (
        "import sys; from command_line.boundary import run_guarded;"
        "from command_line.output import Table, write_tables;"
        f"sys.exit(run_guarded(lambda: write_tables([Table(('a',), [('1',)])] * {count}) or 0, program='p'))"
    )
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (OUTPUT_CLOSED, b"")
