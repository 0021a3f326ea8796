"""`journal append` while the server takes nothing: it says what it waits for, and ends at its time limit."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_commands_end_to_end import JOURNAL, Server, configuration, run
from tests.patience import PATIENCE_S

NEARLY_FULL = '\n[storage]\ndisk_reserve_bytes = "1 TiB"\n'


def served_again(directory: Path, *, full: bool, address: str = "127.0.0.1:0") -> Server:
    """A server at this address; its disk counts as full if more is to be kept free than there is."""
    path = configuration(directory)
    text = path.read_text().replace('tcp = "127.0.0.1:0"', f'tcp = "{address}"')
    path.write_text(text + (NEARLY_FULL if full else ""))
    with (directory / "server.log").open("a") as log:
        process = subprocess.Popen(
            [*JOURNAL, "serve", "--data", str(directory / "data"), "--config", str(path)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    return Server(directory, process, line.split("tcp=")[1].split()[0])


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Server]:
    """A server with a shard ``s`` whose disk is nearly full."""
    server = Server.start(tmp_path)
    try:
        server.journal("shard", "create", "s")
        assert server.stop() == 0
    finally:
        server.kill()
    server = served_again(tmp_path, full=True)
    try:
        yield server
    finally:
        server.kill()


@pytest.mark.slow("waits for a server that refuses")
def test_an_append_that_is_refused_for_the_moment_ends_after_its_timeout(full: Server) -> None:
    """It waited for ever, and did not say for what."""
    began_s = time.monotonic()
    done = run("append", "s", "--timeout", "3s", "--server", full.address, given=b"1\n2\n", status=1)
    assert 3 <= time.monotonic() - began_s < 3 + PATIENCE_S / 2
    waiting, gave_up = done.stderr.decode().splitlines()
    assert waiting.startswith("journal: s: waiting: ")
    assert "storage.disk_reserve_bytes" in waiting
    assert gave_up.startswith("journal: gave up after 3s without an acknowledgement (--timeout): ")
    assert "storage.disk_reserve_bytes" in gave_up
    assert gave_up.endswith("records that are not acknowledged may be stored or not")
    assert done.stdout == b""
    assert full.journal("read", "s") == ""
    for timeout in ("soon", "0s"):
        done = run("append", "s", "--timeout", timeout, "--server", full.address, given=b"1\n", status=2)
        assert timeout in done.stderr.decode()


@pytest.mark.slow("waits for a server that refuses")
def test_an_append_says_what_it_waits_for_and_continues(full: Server) -> None:
    """Also while standard input is open: what was typed a while ago is not stored, and the user should know."""
    append = subprocess.Popen(
        [*JOURNAL, "append", "s", "--server", full.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert append.stdin is not None
        assert append.stderr is not None
        append.stdin.write(b"1\n")
        append.stdin.flush()
        assert b"s: waiting: " in line_of(append.stderr.fileno())
        assert full.stop() == 0
        again = served_again(full.directory, full=False, address=full.address)
        try:
            while b"s: appends are acknowledged again" not in line_of(append.stderr.fileno()):
                pass
            out, _ = append.communicate(b"2\n", timeout=PATIENCE_S)
            assert out == b"2 records acknowledged (durable), last offset 1\n"
            assert append.returncode == 0
        finally:
            again.kill()
    finally:
        append.kill()
        append.wait()


@pytest.mark.slow("waits for a server that refuses")
def test_a_server_that_does_not_answer_is_reported(tmp_path: Path) -> None:
    server = Server.start(tmp_path)
    try:
        server.journal("shard", "create", "s")
        append = subprocess.Popen(
            [*JOURNAL, "append", "s", "--server", server.address, "--timeout", "6s"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert append.stdin is not None
        append.stdin.write(b"1\n")
        append.stdin.flush()
        assert append.stdout is not None
        deadline_s = time.monotonic() + PATIENCE_S
        while server.journal("read", "s") != "1\n":
            assert time.monotonic() < deadline_s
        server.process.send_signal(signal.SIGSTOP)
        try:
            _, errors = append.communicate(b"2\n", timeout=PATIENCE_S)
        finally:
            server.process.send_signal(signal.SIGCONT)
        waiting, gave_up = errors.decode().splitlines()
        assert waiting == "journal: s: waiting: the server has not answered yet"
        assert "gave up after 6s" in gave_up
        assert "before that: 1 record acknowledged (durable), last offset 0" in gave_up
        assert append.returncode == 1
    finally:
        server.kill()


def line_of(descriptor: int) -> bytes:
    """The next line, read without a buffer in which others would hide from `select`."""
    line = b""
    while not line.endswith(b"\n"):
        assert select.select([descriptor], [], [], PATIENCE_S)[0], line
        piece = os.read(descriptor, 1)
        assert piece, line
        line += piece
    return line
