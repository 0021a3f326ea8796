"""Damaged records at the command line: the message names shard, offsets, file and the way out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from shards.format.batch_header import MAGIC
from tests.cli.test_commands_end_to_end import Server, run

LINES = [b"%d" % number for number in range(3_000)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with 30 batches of one shard in a log file."""
    directory = tmp_path_factory.mktemp("stored")
    server = Server.start(directory)
    try:
        server.journal("shard", "create", "plant/a")
        server.journal("append", "plant/a", "--batch", "100", given=b"\n".join(LINES))
        assert server.stop() == 0
    finally:
        server.kill()
    return directory


@pytest.fixture
def damaged(stored: Path, tmp_path: Path) -> Iterator[Server]:
    """A server on a copy in which one byte of a body is another one."""
    shutil.copytree(stored, tmp_path / "copy")
    [log] = (tmp_path / "copy" / "data").glob("log/*/*.log")
    content = bytearray(log.read_bytes())
    content[content.index(b"123412351236")] ^= 1
    log.write_bytes(content)
    server = Server.start(tmp_path / "copy")
    try:
        yield server
    finally:
        server.kill()


@pytest.mark.slow("starts servers and commands")
def test_damage_is_reported_with_shard_offsets_and_file(damaged: Server) -> None:
    """ "record batch at byte 19536: wrong body checksum" named neither shard nor file, and there was no way out."""
    for command in (
        ("read", "plant/a"),
        ("read", "plant/a", "--json"),
        ("tail", "plant/a", "--from", "earliest"),
        ("tail", "plant/+", "--from", "earliest"),
    ):
        done = run(*command, "--server", damaged.address, status=1)
        said = done.stderr.decode()
        assert said.startswith(
            "journal: shard 'plant/a' is damaged at offsets 1200 up to, not including, 1300, in log/"
        )
        assert "0000000000000001-00000000000000000000.log of the server's data directory: wrong body checksum" in said
        assert "`journal check DIR`" in said
        assert "`journal restore`" in said
        assert "`journal read plant/a --from 1300` continues after it" in said
        # What is before the damage is shown.
        assert len(done.stdout.splitlines()) == 1200
    rest = run("read", "plant/a", "--from", "1300", "--server", damaged.address)
    assert rest.stdout.splitlines() == LINES[1300:]
    enough = run("read", "plant/a", "--count", "1200", "--server", damaged.address)
    assert enough.stdout.splitlines() == LINES[:1200]


@pytest.mark.slow("starts servers and commands")
def test_a_batch_whose_place_is_damaged_is_reported_with_its_first_offset(stored: Path, tmp_path: Path) -> None:
    """Where the offsets themselves are damaged, the message has none that may be wrong."""
    shutil.copytree(stored, tmp_path / "copy")
    [log] = (tmp_path / "copy" / "data").glob("log/*/*.log")
    content = bytearray(log.read_bytes())
    first = content.index(MAGIC)
    second = content.index(MAGIC, first + len(MAGIC))
    content[second + 8] ^= 1
    log.write_bytes(content)
    found = run("check", str(tmp_path / "copy" / "data"), status=1).stdout.decode()
    assert f"{log} at byte {second}: wrong prefix checksum" in found
    assert "(shard 'plant/a')" in found
    server = Server.start(tmp_path / "copy")
    try:
        said = run("read", "plant/a", "--server", server.address, status=1).stderr.decode()
        assert "shard 'plant/a' is damaged at offset 100, in log/" in said
        assert "reads on behind" not in said
        log.unlink()
        said = run("read", "plant/a", "--from", "2000", "--server", server.address, status=1).stderr.decode()
        assert f"{log} at byte 0: the file is missing; it held offsets 0 to 2999 of shard 'plant/a'" in said
        assert "`journal check DIR`" in said
    finally:
        server.kill()
