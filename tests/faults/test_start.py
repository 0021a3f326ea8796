"""A server that cannot start says in one line what is wrong, where, and the way out."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from command_line.overrides import overrides_of
from journal.engine import open_engine
from journal.settings.server_file import load_config
from shards.errors import ShardDamagedError
from shards.format.batch import encode_values
from shards.model import ShardConfig
from shards.seams.os_file_system import OsFileSystem
from tests.faults.processes import SETTINGS, refusal, running


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_a_data_directory_has_one_server(data: Path) -> None:
    with running(data) as server:
        said = refusal(data)
        assert f"data directory {data} is in use by the process with pid {server.process.pid}" in said
        assert "stop that process or choose another data directory" in said
        server.kill()
    # The lock ends with its process, however that ended.
    OsFileSystem().lock(str(data)).release()


@pytest.mark.slow("starts servers")
def test_the_directory_shows_its_readers_where_the_server_listens(data: Path) -> None:
    announced = data / "SERVER"
    with running(data, "listen.tcp=0.0.0.0:0", "access.allow_insecure=true") as server:
        expected = {"tcp": f"127.0.0.1:{server.ports['tcp']}", "pid": server.pid}
        assert json.loads(announced.read_text()) == expected
        server.kill()
    assert announced.exists()
    with running(data, "listen.tcp=") as server:
        # That of the one that was killed would send readers astray.
        assert json.loads(announced.read_text()) == {"tcp": "", "pid": server.pid}
        assert server.stop() == 0
    assert not announced.exists()


def test_a_directory_of_a_newer_version_is_left_alone(data: Path) -> None:
    data.mkdir()
    (data / "FORMAT").write_text(json.dumps({"version": 99, "node_id": "x"}))
    said = refusal(data)
    assert f"{data} has data layout 99, this program knows up to 3; start the newer version" in said
    assert sorted(path.name for path in data.iterdir()) == ["FORMAT", "LOCK"]


def test_a_directory_of_something_else_is_left_alone(data: Path) -> None:
    data.mkdir()
    (data / "holiday.jpg").write_bytes(b"x")
    (data / "SERVER").write_bytes(b"x")
    assert f"{data} is not a data directory: it has no FORMAT file but holds" in refusal(data)
    assert sorted(path.name for path in data.rglob("*")) == ["SERVER", "holiday.jpg"], "there was a file LOCK"


def test_no_lock_is_left_in_a_directory_that_another_program_reads_from(data: Path) -> None:
    (data / "reading").mkdir(parents=True)
    assert f"{data} is not a data directory: it has no FORMAT file but holds reading" in refusal(data)
    assert [path.name for path in data.rglob("*")] == ["reading"]


def test_a_format_file_that_cannot_be_read_is_named(data: Path) -> None:
    data.mkdir()
    (data / "FORMAT").write_bytes(b"\0" * 20)
    assert f"{data}/FORMAT at byte 0: expected JSON with version and node_id" in refusal(data)


def test_a_path_that_is_no_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert f"data directory {tmp_path}/file cannot be made" in refusal(tmp_path / "file")


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory on a read-only mount: permissions do not stop root."""
    place = tmp_path / "mounted"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("needs root and the mount program for a read-only file system")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "ro,size=1m", "none", str(place)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_read_only_directory_is_named(read_only: Path) -> None:
    for place in (read_only, read_only / "below"):
        said = refusal(place)
        assert str(place) in said
        assert "Read-only file system" in said
        assert "choose another" in said


def test_a_port_that_is_taken_is_named_with_its_setting(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name in ("tcp", "websocket", "http"):
            said = refusal(data, f"listen.{name}=127.0.0.1:{port}")
            assert f"cannot listen on 127.0.0.1:{port} (listen.{name}): Address already in use" in said
            assert f"--set listen.{name}=HOST:PORT" in said
    assert not data.exists()


def test_settings_that_make_no_sense_are_named_with_what_is_allowed(data: Path, tmp_path: Path) -> None:
    settings = tmp_path / "journal.toml"
    settings.write_text("[storage]\nsegmnt_bytes = 1\n")
    said = refusal(data, extra=("--config", str(settings)))
    assert f"{settings}: [storage] segmnt_bytes = 1 is unknown; did you mean segment_bytes?" in said
    assert "allowed: 64 KiB to 64 GiB" in refusal(data, "storage.segment_bytes=1")
    assert "did you mean max_frame_bytes?" in refusal(data, "limits.max_frame_byte=1")
    assert f"{tmp_path}/none cannot be read" in refusal(data, extra=("--config", f"{tmp_path}/none"))
    assert not data.exists()


# Damage


def write_some(data: Path, *, stop: bool = False, **shards: list[bytes]) -> None:
    """A directory with one batch for each value, as a stop leaves it, or else as a SIGKILL does."""
    config = load_config(None, overrides_of(SETTINGS, listed_by="journal config --default"))
    origin = data.with_name("origin")

    async def write() -> None:
        async with open_engine(str(origin), config) as engine:
            for name, values in shards.items():
                await engine.create_shard(name, ShardConfig())
                for value in values:
                    await engine.append(engine.parts.table.by_name(name), encode_values([value], timestamp_us=1_000))
            if not stop:
                shutil.copytree(origin, data)

    trio.run(write)
    if stop:
        origin.rename(data)


def journal_file(data: Path) -> Path:
    (path,) = (data / "journal").glob("journal-*.jnl")
    return path


def flip(path: Path, position: int, bit: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ bit]))


def read_all(data: Path, *names: str) -> dict[str, list[bytes]]:
    with running(data) as server, server.client() as client:
        found = {name: client.read(client.open(name)) for name in names}
        assert server.stop() == 0
    return found


@pytest.mark.slow("starts servers")
def test_a_torn_last_group_is_cut_off_and_all_before_it_is_there(data: Path) -> None:
    write_some(data, a=[b"first" * 50, b"second" * 50, b"LAST!" * 50])
    path = journal_file(data)
    with path.open("r+b") as file:
        file.seek(path.read_bytes().rindex(b"LAST!" * 50))
        file.write(os.urandom(100))
    with running(data) as server:
        assert "truncated_bytes=" in server.log.read_text()
        with server.client() as client:
            handle = client.open("a")
            assert client.read(handle) == [b"first" * 50, b"second" * 50]
            assert client.append(handle, b"third") == 2
        server.kill()
    assert read_all(data, "a") == {"a": [b"first" * 50, b"second" * 50, b"third"]}


def test_a_journal_file_that_was_cut_refuses_to_open(data: Path) -> None:
    """A crash does not shorten a file that was made at full size: something else did, and acknowledged data is gone."""
    write_some(data, a=[b"first" * 50, b"second" * 50])
    path = journal_file(data)
    os.truncate(path, path.read_bytes().rindex(b"second" * 50))
    assert f"{path} at byte" in refusal(data)


@pytest.mark.slow("starts servers")
def test_a_flipped_bit_in_a_payload_stops_its_shard_alone(data: Path) -> None:
    write_some(data, good=[b"good" * 20], bad=[b"BAD!" * 20], after=[b"after" * 20])
    path = journal_file(data)
    flip(path, path.read_bytes().index(b"BAD!" * 20) + 8)
    for _ in range(2):
        # The second start is after a checkpoint: the damage is not forgotten with the journal's entries.
        with running(data) as server, server.client() as client:
            assert client.read(client.open("good"))[0] == b"good" * 20
            assert client.read(client.open("after")) == [b"after" * 20]
            said = r"shard 'bad' is stopped .*journal-0.*\.jnl at byte \d+: .*checksum: expected 0x.*journal check"
            with pytest.raises(ShardDamagedError, match=said):
                client.open("bad")
            client.append(client.open("good"), b"more")
            assert server.stop() == 0
    assert "shard stopped" in server.log.read_text()


def test_a_flipped_bit_in_an_entry_header_refuses_to_open(data: Path) -> None:
    write_some(data, a=[b"first" * 20], b=[b"second" * 20])
    path = journal_file(data)
    # The batch header has 88 bytes, the entry header before it 40.
    header_at = path.read_bytes().index(b"first" * 20) - 88 - 8 - 40
    flip(path, header_at + 28)
    said = refusal(data)
    assert f"{path} at byte " in said
    assert "checksum: expected 0x" in said
    assert "journal check" in said


def test_a_flipped_bit_in_a_journal_files_head_refuses_to_open(data: Path) -> None:
    write_some(data, a=[b"x"])
    path = journal_file(data)
    flip(path, 20)
    assert f"{path} at byte 0: header checksum: expected 0x" in refusal(data)


def test_a_missing_journal_file_is_noticed(data: Path) -> None:
    write_some(data, a=[os.urandom(900_000) for _ in range(5)])
    paths = sorted((data / "journal").glob("journal-*.jnl"))
    assert len(paths) >= 3
    paths[1].unlink()
    said = refusal(data)
    assert f"{paths[2]} at byte 0: begins with lsn" in said


def log_files(data: Path) -> list[Path]:
    return sorted((data / "log").rglob("*.log"))


@pytest.mark.slow("starts servers")
def test_a_flipped_bit_in_a_log_segment_is_reported_to_its_reader(data: Path) -> None:
    write_some(data, stop=True, good=[b"good" * 20], bad=[b"BAD!" * 20, b"next" * 20])
    (path,) = [path for path in log_files(data) if b"BAD!" in path.read_bytes()]
    at = path.read_bytes().index(b"BAD!" * 20)
    flip(path, at + 3)
    with running(data) as server, server.client() as client:
        with pytest.raises(Exception, match=r"checksum.*expected 0x[0-9a-f]+, found 0x"):
            client.read(client.open("bad"))
        assert client.read(client.open("good")) == [b"good" * 20]
    # The same in a batch header, which the server itself has to follow.
    flip(path, at + 3)
    flip(path, path.read_bytes().index(b"JRB1") + 36, 0x40)
    with running(data) as server, server.client() as client:
        handle = client.open("bad")
        with pytest.raises(Exception, match=rf"{path} at byte \d+: (expected|checksum)"):
            client.read(handle, 1)
        assert client.read(client.open("good")) == [b"good" * 20]
        client.append(client.open("good"), b"more")
        assert server.stop() == 0


@pytest.mark.slow("starts servers")
def test_a_log_segment_that_is_gone_or_cut_is_reported_to_its_reader(data: Path) -> None:
    write_some(data, stop=True, good=[b"good"], bad=[b"bad" * 100])
    (path,) = [path for path in log_files(data) if b"bad" * 100 in path.read_bytes()]
    whole = path.read_bytes()
    os.truncate(path, len(whole) - 100)
    with running(data) as server, server.client() as client:
        with pytest.raises(Exception, match=rf"{path} at byte {len(whole) - 100}: the file ends here"):
            client.read(client.open("bad"))
        path.unlink()
        with pytest.raises(Exception, match=rf"{path} at byte 0: the file is missing"):
            client.read(client.open("bad"))
        assert client.read(client.open("good")) == [b"good"]
        assert server.stop() == 0


def test_a_damaged_catalogue_refuses_to_open(data: Path) -> None:
    write_some(data, stop=True, a=[b"x"])
    tables = sorted((data / "state").glob("*.sst"))
    assert tables
    for path in tables:
        # In the middle of the data, which comes first in a table.
        for position in range(8, 40):
            flip(path, position, 0xFF)
    said = refusal(data)
    assert f"{data}/state" in said
    assert "Corruption" in said


def test_a_missing_catalogue_is_not_taken_for_an_empty_one(data: Path) -> None:
    write_some(data, stop=True, a=[b"x"])
    shutil.rmtree(data / "state")
    said = refusal(data)
    assert f"{data}/state" in said
