"""The command itself: help, wrong usage, and what it says without a place to read."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_export.cli.main import run
from spark_export.cli.place import Place
from tests.spark.sealed_trees import SealedTree, values


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


@pytest.mark.parametrize(
    ("command", "wanted"),
    [(["sql"], "query"), (["export"], "target"), (["drain", "--queue", "q"], "target")],
    ids=["sql", "export", "drain"],
)
@pytest.mark.parametrize("named", [[], ["--server", "127.0.0.1:1"]], ids=["alone", "with a server"])
@pytest.mark.parametrize("holds", ["FORMAT", "sealed", "date=2026-11-22"])
def test_a_journal_alone_is_not_taken_for_the_query(
    command: list[str],
    wanted: str,
    named: list[str],
    holds: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was taken for the query or target, and then a directory was asked for, or Spark could not parse it."""
    monkeypatch.setenv("JOURNAL_SERVER", "127.0.0.1:1")
    (tmp_path / holds).mkdir()
    assert run([*command, str(tmp_path), *named]) == 2
    assert capsys.readouterr().err == (
        f"journal-spark: {tmp_path} is a directory with records; write the {wanted} behind it\n"
    )


def test_the_error_of_a_query_alone_names_the_missing_journal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOURNAL_SERVER", raising=False)
    assert run(["sql", "select 1"]) == 2
    assert "name, before the query 'select 1', a data directory, " in capsys.readouterr().err


def test_without_spark_it_says_what_brings_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    assert run(["sql", str(tmp_path), "select 1"]) == 1
    told = capsys.readouterr().err
    assert "the Python package 'pyspark' is not installed; `pip install " in told
    assert told.endswith("` installs the packages that `journal-spark` needs\n")


@pytest.mark.slow("runs Spark")
def test_in_a_process_of_its_own_data_goes_to_stdout_and_a_terminal_shows_what_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a user has it: other tests give Java an option (tests/conftest.py).
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    SealedTree(tmp_path).convert("plant/1", values(2))
    command = [sys.executable, "-m", "spark_export.cli.main", "sql", str(tmp_path), "select count(*) as n from sealed"]
    terminal, its_end = os.openpty()
    with subprocess.Popen([*command, "--json", "--memory", "512m"], stdout=subprocess.PIPE, stderr=its_end) as process:
        os.close(its_end)
        shown = b"".join(iter(lambda: read_terminal(terminal), b""))
        assert process.stdout is not None
        out = process.stdout.read()
    os.close(terminal)
    assert process.returncode == 0, shown.decode()
    assert json.loads(out) == {"n": 2}
    assert b"starting Spark" in shown
    for noise in (b"WARN", b"ERROR", b"log4j"):
        assert noise not in shown


@pytest.mark.slow("runs Spark")
def test_in_a_process_of_its_own_a_bad_query_is_one_line_too(tmp_path: Path) -> None:
    """Guards against an error whose text is asked of a Java process that has ended."""
    command = [sys.executable, "-m", "spark_export.cli.main", "sql", str(tmp_path), "selec 1", "--memory", "512m"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("journal-spark: line 1, column 1: ")
    assert done.stderr.count("\n") == 1


def read_terminal(descriptor: int) -> bytes:
    """What a terminal shows next; nothing when the last process has left it."""
    try:
        return os.read(descriptor, 4096)
    except OSError as error:
        assert error.errno == errno.EIO
        return b""


def test_help_needs_neither_spark_nor_arrow() -> None:
    program = (
        "import sys; from spark_export.cli.main import run; run(['--help']); "
        "print(*[name for name in ('trio', 'pyspark', 'pyarrow', 'numpy', 'rocksdict') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert told.splitlines()[-1] == ""


@pytest.mark.parametrize("arguments", [["sql", "{}", "select 1"], ["stats", "{}"], ["export", "{}", "out"]])
def test_a_directory_that_does_not_exist_is_reported_before_spark_starts(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_export.session.make_session", None)
    missing = f"{tmp_path}/nowhere"
    assert run([each.format(missing) for each in arguments]) == 1
    assert capsys.readouterr().err == (
        f"journal-spark: there is no directory {missing}; name the data directory or a tree of sealed segments\n"
    )
