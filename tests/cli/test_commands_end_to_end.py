"""Every command against a real server in a process of its own.

The commands run in this process where nothing speaks against it, since starting Python takes longer than what they do.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from journal.cli import main
from tests.patience import PATIENCE_S

JOURNAL = [sys.executable, "-m", "journal.cli.main"]


@attrs.define
class Server:
    """A server process on a directory of its own."""

    directory: Path
    process: subprocess.Popen[str]
    address: str

    @classmethod
    def start(cls, directory: Path) -> Server:
        with (directory / "server.log").open("a") as log:
            process = subprocess.Popen(
                [*JOURNAL, "serve", "--data", str(directory / "data"), "--config", str(configuration(directory))],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        line = read_line(process)
        assert line.startswith("ready"), f"{line!r}; {(directory / 'server.log').read_text()}"
        match = re.search(r"127\.0\.0\.1:\d+", line)
        assert match, line
        return cls(directory, process, match[0])

    def stop(self) -> int:
        return self.end(signal.SIGTERM)

    def kill(self) -> None:
        if self.process.returncode is None:
            self.end(signal.SIGKILL)

    def end(self, how: signal.Signals) -> int:
        with self.process:
            self.process.send_signal(how)
            return self.process.wait(PATIENCE_S)

    def journal(self, *arguments: str, given: bytes = b"", status: int = 0) -> str:
        return run(*arguments, "--server", self.address, given=given, status=status).stdout.decode()


def configuration(directory: Path) -> Path:
    """Listeners on free ports, so that tests may run beside a real server."""
    path = directory / "journal.toml"
    path.write_text('[listen]\ntcp = "127.0.0.1:0"\nwebsocket = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\n')
    return path


@attrs.frozen
class Done:
    """What a command wrote and how it ended."""

    status: int
    stdout: bytes
    stderr: bytes


def run(*arguments: str, given: bytes = b"", status: int = 0) -> Done:
    """Run a command in this process, with ``given`` as its standard input."""
    out, err = (io.TextIOWrapper(io.BytesIO()) for _ in range(2))
    with standard_input(given), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = main.run(arguments)
    told = []
    for stream in (out, err):
        stream.flush()
        told.append(stream.buffer.getvalue())
    done = Done(found, *told)
    assert done.status == status, done
    return done


@contextlib.contextmanager
def standard_input(given: bytes) -> Iterator[None]:
    """Put bytes behind file descriptor 0."""
    saved = os.dup(0)
    try:
        with tempfile.TemporaryFile() as file:
            file.write(given)
            file.seek(0)
            os.dup2(file.fileno(), 0)
            yield
    finally:
        os.dup2(saved, 0)
        os.close(saved)


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line of a process's output, or a failure when none comes in time."""
    assert process.stdout
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    assert ready, "no line came in time"
    return process.stdout.readline()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server.start(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Server]]:
    """Starts servers on one directory, one after another, and leaves none behind."""
    with contextlib.ExitStack() as servers:

        def start() -> Server:
            server = Server.start(tmp_path)
            servers.callback(server.kill)
            return server

        yield start


@pytest.fixture
def shard(server: Server, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W+", "/", request.node.name)
    server.journal("shard", "create", name)
    return name


def test_lines_come_back_as_they_went_in(server: Server, shard: str) -> None:
    lines = b"one\n\ntwo words\n\xff\x00\xfe\nlast without line feed"
    told = server.journal("append", shard, given=lines)
    assert told == "5 records acknowledged (durable), last offset 4\n"
    done = run("read", shard, "--server", server.address)
    assert done.stdout == lines + b"\n"


def test_append_in_batches_streams_any_amount(server: Server, shard: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(25_000))
    told = json.loads(server.journal("append", shard, "--batch", "100", "--json", given=lines))
    assert told == {"shard": shard, "count": 25_000, "last_offset": 24_999, "level": "durable"}
    assert run("read", shard, "--server", server.address).stdout == lines


def test_nothing_to_append_is_no_error(server: Server, shard: str) -> None:
    assert server.journal("append", shard) == "0 records acknowledged\n"


def test_json_shows_whole_records(server: Server, shard: str) -> None:
    before_us = time.time_ns() // 1000
    server.journal("append", shard, given=b"text\n\xff\n")
    text, binary = (json.loads(line) for line in server.journal("read", shard, "--json").splitlines())
    assert text["offset"] == 0
    assert text["shard"] == text["topic"] == shard
    assert text["value"] == "text"
    assert before_us <= text["append_time_us"] <= time.time_ns() // 1000
    assert binary["offset"] == 1
    assert base64.b64decode(binary["value_base64"]) == b"\xff"


def test_a_read_begins_at_the_given_offset_and_stops_at_its_count(server: Server, shard: str) -> None:
    server.journal("append", shard, given=b"0\n1\n2\n3\n4\n")
    assert server.journal("read", shard, "--from", "3") == "3\n4\n"
    assert server.journal("read", shard, "--from", "1", "--count", "2") == "1\n2\n"
    beyond = run("read", shard, "--from", "5000", "--server", server.address)
    assert (beyond.stdout, beyond.stderr.decode()) == (
        b"",
        f"journal: {shard}: nothing at offset 5000: it ends before offset 5\n",
    )
    for start in ("latest", "2100-01-01"):
        beyond = run("read", shard, "--from", start, "--server", server.address)
        assert (beyond.stdout, beyond.stderr.decode()) == (
            b"",
            f"journal: {shard}: nothing from there on: it ends before offset 5\n",
        )
    assert server.journal("read", shard, "--from", "-1h", "--count", "1") == "0\n"
    assert server.journal("read", shard, "--from", "2020-01-01T00:00:00Z", "--count", "1") == "0\n"


def test_the_error_of_an_offset_out_of_range_names_the_range(server: Server, shard: str) -> None:
    server.journal("append", shard, given=b"0\n1\n")
    error = run("read", shard, "--from", "9", "--follow", "--server", server.address, status=1).stderr.decode()
    assert error.count("\n") == 1
    assert "from 0 up to but not including 2" in error


def test_follow_continues_with_what_is_appended(server: Server, shard: str) -> None:
    server.journal("append", shard, given=b"before\n")
    with subprocess.Popen(
        [*JOURNAL, "read", shard, "--follow", "--count", "2", "--server", server.address],
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert read_line(reader) == "before\n"
        server.journal("append", shard, given=b"after\n")
        assert read_line(reader) == "after\n"
        assert reader.wait(PATIENCE_S) == 0


def test_tail_prints_topic_and_payload_of_every_shard_that_matches(server: Server) -> None:
    server.journal("shard", "create", "tail/a")
    server.journal("append", "tail/a", given=b"1\n")
    with subprocess.Popen(
        [*JOURNAL, "tail", "tail/#", "--from", "earliest", "--server", server.address],
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert read_line(reader) == "tail/a 1\n"
        server.journal("shard", "create", "tail/b")
        server.journal("append", "tail/b", given=b"2\n")
        assert read_line(reader) == "tail/b 2\n"
        reader.send_signal(signal.SIGINT)
        assert reader.wait(PATIENCE_S) == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_in_the_background_ends_on_its_signals(server: Server, shard: str, number: signal.Signals) -> None:
    """Shells start background jobs with SIGINT ignored: `kill -INT` did nothing to `journal tail ... &`."""
    server.journal("append", shard, given=b"0\n")
    command = [*JOURNAL, "tail", shard, "--from", "earliest", "--server", server.address]
    with subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$0" "$@"', *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as reader:
        assert read_line(reader) == f"{shard} 0\n"
        reader.send_signal(number)
        assert reader.wait(PATIENCE_S) == 128 + number
        assert reader.stderr is not None
        assert reader.stderr.read() == ""


@pytest.mark.parametrize("command", [("tail",), ("read", "--follow")])
def test_a_follower_ends_when_its_output_is_not_read_any_more(
    server: Server, shard: str, command: tuple[str, ...]
) -> None:
    """It noticed at the next record, which may never come."""
    server.journal("append", shard, given=b"0\n")
    word, *more = command
    with subprocess.Popen(
        [*JOURNAL, word, shard, *more, "--from", "0", "--server", server.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as reader:
        assert read_line(reader)
        assert reader.stdout is not None
        reader.stdout.close()
        assert reader.wait(PATIENCE_S) == 141
        assert reader.stderr is not None
        assert reader.stderr.read() == ""


def test_a_tail_waits_for_a_shard_that_is_not_there_yet(server: Server) -> None:
    with subprocess.Popen(
        [*JOURNAL, "tail", "made/later", "--count", "1", "--server", server.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as reader:
        assert "there is no shard 'made/later' yet" in read_line(reader)
        server.journal("shard", "create", "made/later")
        server.journal("append", "made/later", given=b"1\n")
        assert read_line(reader) == "made/later 1\n"
        assert reader.wait(PATIENCE_S) == 0


@pytest.mark.slow("starts servers and commands")
def test_a_reader_that_stops_early_is_no_error(server: Server, shard: str) -> None:
    server.journal("append", shard, given=b"x" * 1000 + b"\n" + b"y\n" * 200_000)
    pipeline = f"{sys.executable} -m journal.cli.main read {shard} --server {server.address} | head -c 3"
    done = subprocess.run(["bash", "-c", pipeline], capture_output=True, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == (b"xxx", b"")


def test_the_life_of_a_shard(server: Server) -> None:
    name = "life/of/a/shard"
    created = json.loads(
        server.journal("shard", "create", name, "--mode", "memory", "--max-age", "7d", "--max-bytes", "1GiB", "--json")
    )
    assert created["config"]["retention"] == {"max_age_s": 604_800, "max_bytes": 1 << 30, "max_records": 0}
    assert "exists" in run("shard", "create", name, "--server", server.address, status=1).stderr.decode()
    server.journal("shard", "create", name, "--exist-ok")

    assert "(memory)" in server.journal("append", name, given=b"0\n1\n")
    assert "file mode" in server.journal("shard", "mode", name, "file")
    assert "(durable)" in server.journal("append", name, given=b"2\n3\n")
    assert server.journal("read", name) == "0\n1\n2\n3\n"
    assert "closed up to offset 4" in server.journal("shard", "roll", name)
    assert (
        server.journal("shard", "convert", "--filter", "life/#") == f"{name}: sealed up to offset 4, 1 Parquet file\n"
    )

    (listed,) = (json.loads(line) for line in server.journal("shard", "list", "life/#", "--json").splitlines())
    assert "segments" not in listed, "a list does not look at them"
    assert (listed["name"], listed["start_offset"], listed["next_offset"]) == (name, 0, 4)
    assert name in server.journal("shard", "list")
    shown = json.loads(server.journal("shard", "show", name, "--json"))
    assert [segment["kind"] for segment in shown["segments"]][:2] == ["memory", "parquet"]
    assert "7d" in server.journal("shard", "show", name)

    trimmed = server.journal("shard", "trim", name, "2", "--yes")
    assert trimmed == f"{name}: dropped offsets 0 up to, not including, 2; starts at offset 2, ends at 4\n"
    assert "nothing to drop" in server.journal("shard", "trim", name, "2")
    assert server.journal("read", name) == "2\n3\n"
    server.journal("cursor", "set", name, "reader", "3")
    deleted = server.journal("shard", "delete", name, "--yes")
    assert deleted.startswith(f"{name}: deleted, with offsets 2 up to, not including, 4 (")
    assert deleted.endswith(") and 1 cursor\n")
    assert server.journal("shard", "list", "life/#", "--json") == ""


def test_what_a_shard_keeps_is_changed_by_a_command(server: Server, shard: str) -> None:
    """The run-book for a full disk needed a program for it. What is not named stays as it is."""
    server.journal("shard", "set", shard, "--max-age", "7d", "--max-bytes", "1GiB", "--yes")
    told = server.journal("shard", "set", shard, "--max-age", "8d", "--segment-bytes", "4MiB")
    assert told == f"{shard}: keeps at most 8d, 1.00 GiB, in segments of 4.00 MiB\n"
    config = json.loads(server.journal("shard", "show", shard, "--json"))["config"]
    assert config["retention"] == {"max_age_s": 8 * 86_400, "max_bytes": 1 << 30, "max_records": 0}
    assert config["segment_bytes"] == 4 << 20
    told = server.journal("shard", "set", shard, "--max-age", "0s", "--max-bytes", "0", "--segment-bytes", "0")
    assert told == f"{shard}: keeps everything, in segments of the server's default size\n"
    assert b"--max-age" in run("shard", "set", shard, "--server", server.address, status=2).stderr


@pytest.mark.parametrize("command", [("delete",), ("trim", "1"), ("set", "--max-records", "1")])
def test_what_loses_records_is_not_done_unasked(server: Server, shard: str, command: tuple[str, ...]) -> None:
    server.journal("append", shard, given=b"0\n1\n")
    word, *more = command
    error = run("shard", word, shard, *more, "--server", server.address, status=2).stderr.decode()
    assert error.count("\n") == 1
    assert shard in error
    assert "add --yes" in error
    assert server.journal("read", shard) == "0\n1\n"


@pytest.mark.parametrize("command", [("delete",), ("trim", "1"), ("set", "--max-records", "1"), ("mode", "file")])
def test_the_error_of_a_change_of_a_missing_shard_does_not_advise_to_create_it(
    server: Server, command: tuple[str, ...]
) -> None:
    word, *more = command
    error = run("shard", word, "nowhere", *more, "--server", server.address, status=1).stderr.decode()
    assert error == "journal: there is no shard 'nowhere'; `journal shard list` lists all shards\n"


def test_durable_is_refused_in_memory_mode(server: Server) -> None:
    server.journal("shard", "create", "volatile", "--mode", "memory")
    done = run("append", "volatile", "--ack", "durable", "--server", server.address, given=b"x\n", status=1)
    assert done.stderr.count(b"\n") == 1


def test_cursors(server: Server, shard: str) -> None:
    server.journal("append", shard, given=b"0\n1\n2\n")
    missing = run("cursor", "get", shard, "reader", "--server", server.address, status=1).stderr.decode()
    assert "no cursor 'reader'" in missing
    first = json.loads(server.journal("cursor", "set", shard, "reader", "1", "--json"))
    assert first["offset"] == 1
    server.journal("cursor", "set", shard, "reader", "2", "--expected-version", str(first["version"]))
    conflict = run(
        *("cursor", "set", shard, "reader", "3", "--expected-version", str(first["version"])),
        *("--server", server.address),
        status=1,
    )
    assert b"version" in conflict.stderr
    assert server.journal("cursor", "get", shard, "reader") == "2\n"
    (listed,) = (json.loads(line) for line in server.journal("cursor", "list", shard, "--json").splitlines())
    assert (listed["name"], listed["offset"]) == ("reader", 2)
    assert "reader" in server.journal("cursor", "list", shard)


@pytest.mark.parametrize("command", [("read", "nowhere"), ("append", "nowhere"), ("shard", "show", "nowhere")])
def test_an_unknown_shard_is_one_line_with_the_way_out(server: Server, command: tuple[str, ...]) -> None:
    error = run(*command, "--server", server.address, given=b"x\n", status=1).stderr.decode()
    assert error.count("\n") == 1
    assert "nowhere" in error
    assert "journal shard create" in error


def test_bench_measures_and_leaves_nothing_behind(server: Server) -> None:
    measured = json.loads(server.journal("bench", "--records", "2000", "--batch", "100", "--json"))
    assert measured["append"]["records"] == measured["read"]["records"] == 2000
    assert measured["append"]["records_per_s"] > 0
    assert "bench" not in server.journal("shard", "list", "--json")


@pytest.mark.slow("starts servers and commands")
def test_a_stopped_server_leaves_a_directory_that_checks_and_dumps(start: Callable[[], Server], tmp_path: Path) -> None:
    server = start()
    server.journal("shard", "create", "kept")
    server.journal("append", "kept", given=b"a\nb\n")
    started = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - started < 5

    data = tmp_path / "data"
    run("check", str(data))
    assert json.loads(run("check", str(data), "--json").stdout)["damages"] == []
    (log,) = (data / "log").rglob("*.log")
    shown = [json.loads(line) for line in run("dump", str(log), "--records", "--json").stdout.splitlines()]
    assert shown[0]["header"]["name"] == "kept"
    assert [line["value"] for line in shown if "value" in line] == ["a", "b"]
    (journal,) = (data / "journal").glob("journal-*.jnl")
    told = [json.loads(line) for line in run("dump", str(journal), "--json").stdout.splitlines()]
    assert "append" in [line.get("entry") for line in told]

    content = bytearray(log.read_bytes())
    content[-5] ^= 1
    log.write_bytes(content)
    assert str(log) in run("check", str(data), status=1).stdout.decode()
    assert str(log) in run("dump", str(log), status=1).stderr.decode()

    again = start()
    assert "kept" in again.journal("shard", "list")
    assert again.stop() == 0


@pytest.mark.slow("starts servers and commands")
def test_what_was_acknowledged_survives_sigkill(start: Callable[[], Server]) -> None:
    server = start()
    server.journal("shard", "create", "kept")
    server.journal("append", "kept", given=b"a\nb\n")
    server.kill()
    again = start()
    assert again.journal("read", "kept") == "a\nb\n"
    assert again.stop() == 0


@pytest.mark.slow("starts servers and commands")
def test_a_lost_memory_range_is_reported_as_a_gap(start: Callable[[], Server]) -> None:
    server = start()
    server.journal("shard", "create", "mixed")
    server.journal("append", "mixed", given=b"kept\n")
    server.journal("shard", "mode", "mixed", "memory")
    server.journal("append", "mixed", given=b"lost\nlost\n")
    server.kill()
    again = start()
    again.journal("append", "mixed", given=b"new\n")
    first, gap, last = (json.loads(line) for line in again.journal("read", "mixed", "--json").splitlines())
    assert (first["value"], first["offset"]) == ("kept", 0)
    assert gap["gap"][0] == 1
    assert gap["gap"][1] >= 3
    assert (last["value"], last["offset"]) == ("new", gap["gap"][1])
    done = run("read", "mixed", "--server", again.address)
    assert done.stdout == b"kept\nnew\n"
    assert b"are lost" in done.stderr
    assert again.stop() == 0


def test_a_directory_in_use_is_one_line_that_names_the_holder(server: Server, tmp_path: Path) -> None:
    other = configuration(tmp_path)
    error = run("serve", "--data", str(server.directory / "data"), "--config", str(other), status=1).stderr.decode()
    assert error.count("\n") == 1
    assert str(server.process.pid) in error


def test_a_port_in_use_is_one_line_that_names_it(server: Server, tmp_path: Path) -> None:
    error = run(
        *("serve", "--data", str(tmp_path / "data"), "--config", str(configuration(tmp_path))),
        *("--listen", server.address),
        status=1,
    ).stderr.decode()
    assert error.count("\n") == 1
    assert server.address.rpartition(":")[2] in error


def test_an_unknown_configuration_key_is_one_line_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.toml"
    path.write_text("nonsense_key = 1\n")
    error = run("serve", "--data", str(tmp_path / "data"), "--config", str(path), status=78).stderr.decode()
    assert error.count("\n") == 1
    assert "nonsense_key" in error


@pytest.mark.slow("starts servers and commands")
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_one_line_that_names_it(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    error = run(
        "serve", "--data", str(locked / "data"), "--config", str(configuration(tmp_path)), status=1
    ).stderr.decode()
    assert error.count("\n") == 1
    assert str(locked) in error
