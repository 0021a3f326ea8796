"""`journal backup`, `restore` and `compact` as they are typed, against a server in a process of its own and at rest."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from journal.cli.main import run
from journal.protocol import Op, messages
from shards.model import ShardConfig
from shards.seams.os_file_system import OsFileSystem
from tests.faults.processes import running


def journal(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> tuple[str, str]:
    found = run([str(argument) for argument in arguments])
    told = capsys.readouterr()
    assert found == status, told.err
    return told.out, told.err


@pytest.mark.slow("starts servers and commands")
def test_a_running_server_is_backed_up_restored_and_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, backup, restored = tmp_path / "data", tmp_path / "backup", tmp_path / "restored"
    with running(data) as server:
        with server.client() as client:
            handle = client.open("plant", ShardConfig())
            client.append(handle, b"one", b"two")
            out, _ = journal(capsys, "backup", data, backup)
            assert out.startswith(f"backup 1 in {backup}: up to lsn ")
            client.append(handle, b"three")
            out, _ = journal(capsys, "backup", data, backup, "--json")
            made = json.loads(out)
            assert (made["number"], made["backup"]) == (2, str(backup))
            assert made["copied_files"] < made["files"]
        assert server.stop() == 0
    out, _ = journal(capsys, "check", backup)
    assert "no damage" in out
    out, _ = journal(capsys, "restore", backup, restored, "--number", 1)
    assert out.startswith(f"{restored}: backup 1, up to lsn ")
    with running(restored) as server, server.client() as client:
        assert client.read(client.open("plant")) == [b"one", b"two"]
        handle = client.open("younger", ShardConfig())
        address = f"127.0.0.1:{server.ports['tcp']}"
        described = json.loads(journal(capsys, "shard", "show", "plant", "--json", "--server", address)[0])
        assert (described["restored_offset"], described["next_offset"]) == (2, 2)
        out, _ = journal(capsys, "shard", "show", "plant", "--server", address)
        assert "another history from offset 2 on" in out
        out, _ = journal(capsys, "shard", "show", "younger", "--server", address)
        assert "restored" not in out
        listed = map(json.loads, journal(capsys, "shard", "list", "--json", "--server", address)[0].splitlines())
        assert {info["name"]: info["restored_offset"] for info in listed} == {"plant": 2, "younger": None}
        client.append(handle, b"new")
        (restore,) = json.loads(server.http("/api/v1/node")[1])["restores"]
        status = client.call(Op.STATUS, messages.Empty())
        assert isinstance(status, dict)
        assert status["restores"] == [restore]
        assert made["lsn"] >= restore["lsn_before"] > 0
        assert restore["lsn_after"] > made["lsn"] + (1 << 40)


@pytest.mark.slow("starts servers and commands")
def test_a_directory_at_rest_is_backed_up_and_compacted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    with running(data) as server:
        with server.client() as client:
            client.append(client.open("plant", ShardConfig()), b"one")
        assert server.stop() == 0
    out, _ = journal(capsys, "backup", data, backup)
    assert out.startswith("backup 1")
    out, _ = journal(capsys, "compact", data)
    assert out.startswith(f"{data}: gained ")
    assert "gained -" not in out + journal(capsys, "compact", data)[0]
    out, _ = journal(capsys, "compact", data, "--json")
    assert json.loads(out)["removed_files"] == 0
    out, _ = journal(capsys, "restore", backup, tmp_path / "restored", "--json")
    assert json.loads(out)["number"] == 1
    with running(data) as server, server.client() as client:
        assert client.read(client.open("plant")) == [b"one"]


@pytest.mark.slow("starts the program several times")
def test_what_cannot_be_is_one_line_with_the_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    with running(data) as server:
        _, errors = journal(capsys, "compact", data, status=1)
        assert "stop that process" in errors
        assert server.stop() == 0
    for arguments, said in (
        (("backup", tmp_path / "nowhere", backup), f"there is no directory {tmp_path}/nowhere"),
        (("check", tmp_path / "nowhere"), f"there is no directory {tmp_path}/nowhere"),
        (("backup", tmp_path, tmp_path.parent / "backup"), "not a data directory"),
        (("restore", tmp_path, tmp_path / "restored"), "holds no backups"),
        (("restore", data, tmp_path / "restored"), "holds no backups"),
        (("compact", tmp_path), "not a data directory"),
    ):
        _, errors = journal(capsys, *arguments, status=1)
        assert said in errors
        assert errors.count("\n") == 1
    _, errors = journal(capsys, "backup", data, backup, "--keep", 0, status=2)
    assert "--keep 0" in errors
    (tmp_path / "other name").symlink_to(data)
    for inside in (data, data / "backups", tmp_path / "other name" / "backups"):
        _, errors = journal(capsys, "backup", data, inside, status=2)
        assert f"{inside} is inside of {data}, and would be lost with it; name a directory on another disk" in errors
    assert not (data / "backups").exists()


@pytest.mark.slow("starts the program several times")
def test_a_directory_held_by_a_process_that_serves_no_client_is_reported_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    with running(data) as server:
        assert server.stop() == 0
    lock = OsFileSystem().lock(str(data))
    try:
        _, errors = journal(capsys, "backup", data, tmp_path / "backup", status=1)
    finally:
        lock.release()
    assert "by a process that no client can connect to" in errors
    assert not (tmp_path / "backup").exists()


@pytest.mark.slow("starts the program several times")
def test_the_server_of_another_directory_is_not_backed_up_in_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path / "data") as server, running(tmp_path / "other") as other:
        address = f"127.0.0.1:{other.ports['tcp']}"
        _, errors = journal(capsys, "backup", tmp_path / "data", tmp_path / "backup", "--server", address, status=1)
        assert "the directory belongs to node" in errors
        assert not (tmp_path / "backup").exists()
        journal(
            capsys, "backup", tmp_path / "data", tmp_path / "backup", "--server", f"127.0.0.1:{server.ports['tcp']}"
        )


@pytest.mark.slow("starts servers and commands")
def test_a_frozen_server_is_named_with_the_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It takes 10 s, the bound on connecting. The error said neither which server nor what to do."""
    with running(tmp_path / "data") as server:
        server.process.send_signal(signal.SIGSTOP)
        try:
            _, told = journal(capsys, "backup", tmp_path / "data", tmp_path / "backup", status=1)
        finally:
            server.process.send_signal(signal.SIGCONT)
    assert f"the server at 127.0.0.1:{server.ports['tcp']} does not answer: no reply to HELLO within 10 s" in told
    assert "check the server and its log, or name another with --server HOST:PORT" in told
