"""What a server of a cluster refuses at its start, and what a directory is refused for."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import signal
import socket
from pathlib import Path

import pytest
import trio

from journal.cli.main import run
from journal.logstore.driver import run as run_steps
from journal.logstore.ownership import Member, own
from journal.logstore.probe import Holds, identify
from journal.logstore.stores.addresses import DEFAULT_ROOT, StoreAddress
from journal.logstore.stores.directory import DirectoryLogStore
from journal.logstore.stores.memory import MemoryLogStore
from journal.server.cluster.membership import _check_places
from tests.cluster.servers import Server, format_of, running


def refusal(server: Server, *settings: str, statuses: tuple[int, ...] = (1, 78)) -> str:
    """What a server says that does not start, with one of these statuses. It runs in this process."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = run(server.command(*settings)[3:])
    assert (status in statuses, out.getvalue()) == (True, ""), errors.getvalue()
    (line,) = (line for line in errors.getvalue().splitlines() if line.startswith("journal: "))
    return line


def server_of(directory: Path, store: str = "") -> Server:
    return Server(directory, store, "x")


def test_a_store_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "is no directory: create it, or mount" in refusal(server_of(tmp_path, f"file://{tmp_path}/none"))


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "cluster.store: the address of the log store begins with 'ftp'" in refusal(
        server_of(tmp_path, "ftp://host/x")
    )


def test_a_password_in_the_address_is_refused_and_not_repeated(tmp_path: Path) -> None:
    told = refusal(server_of(tmp_path, "postgresql://anna:s3cret@host/db"))
    assert "PGPASSFILE" in told
    assert "s3cret" not in told


def test_a_listener_that_others_need_may_not_be_off(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    server = server_of(tmp_path, f"file://{tmp_path}/store")
    server.http = ""
    assert "listen.http is off: a server of a cluster needs it" in refusal(server)


def test_something_else_in_the_place_of_the_store_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "journal").mkdir(parents=True)
    (store / "journal" / "store").write_bytes(b"a file of another program")
    told = refusal(server_of(tmp_path, f"file://{store}"))
    assert "journal/store is no object of a store: it begins with b'a file o'" in told


@pytest.mark.slow("starts a server")
def test_directories_of_stores_and_of_servers_on_their_own_are_not_mixed(tmp_path: Path) -> None:
    with running(tmp_path, 1) as cluster:
        owner = trio.run(cluster.owner)
    content = format_of(owner.data)
    assert content["version"] == 3
    assert str(content["store"])[:16] == content["node_id"]

    alone = server_of(tmp_path)
    shutil.copytree(owner.data, alone.data)
    assert f"is a copy of the store {content['store']}: start the server with --store" in refusal(alone)

    (tmp_path / "other").mkdir()
    of_other = server_of(tmp_path, f"file://{tmp_path}/other")
    of_other.data = alone.data
    assert f"is a copy of the store {content['store']}, but no store lies at the address" in refusal(of_other)


def test_a_store_whose_files_lie_elsewhere_is_refused_without_them_or_with_those_of_another(tmp_path: Path) -> None:
    addresses = []
    for number, (name, holds) in enumerate({"log": Holds.LOG, "objects": Holds.FILES, "other": Holds.FILES}.items()):
        place = tmp_path / name
        place.mkdir()
        store_id = bytes([number // 2] * 16)
        run_steps(DirectoryLogStore(str(place)), identify(DEFAULT_ROOT, store_id, bytes(16), bytes(16), holds))
        addresses.append(f"file://{place}")
    log, objects, other = addresses
    told = refusal(server_of(tmp_path, log))
    assert "is the identity of the log of a store whose files are elsewhere (--objects)" in told
    told = refusal(server_of(tmp_path, objects))
    assert "is the identity of the files of a store whose log is elsewhere (--store)" in told
    told = refusal(Server(tmp_path, log, "x", objects=other))
    assert f"{other} has the files of the store {'01' * 16}, not of {'00' * 16}" in told
    assert "cluster.store: the address of the log store begins with 'ftp'" in refusal(
        Server(tmp_path, log, "x", objects="ftp://there")
    )
    told = refusal(Server(tmp_path, log, "x", objects=log))
    assert f"{log} is given for the log and for the files" in told
    told = refusal(Server(tmp_path, log, "x", objects=f"{objects}?slots=4"))
    assert "is the place of the files, which have no slots: write slots= into the address of the log" in told
    without_log = Server(tmp_path, "", "x", objects=objects)
    assert "--objects without --store: give the address of the log as well" in refusal(without_log, statuses=(2,))


def test_a_refused_place_of_files_binds_no_place_to_anything(tmp_path: Path) -> None:
    """The log was made before the place of the files was looked at, and refused to be a whole store from then on."""
    for name in ("log", "objects"):
        (tmp_path / name).mkdir()
    store = DirectoryLogStore(str(tmp_path / "objects"))
    run_steps(store, identify(DEFAULT_ROOT, bytes(16), bytes(16), bytes(16), Holds.FILES))
    log, objects = f"file://{tmp_path}/log", f"file://{tmp_path}/objects"
    told = refusal(Server(tmp_path, log, "x", objects=objects))
    assert f"{objects} has the files of a store whose log is elsewhere (--store) already, of the store" in told
    assert f"{log} is given for the log and for the files" in refusal(Server(tmp_path, log, "x", objects=log))
    assert list((tmp_path / "log").iterdir()) == []


@pytest.mark.slow("starts a server three times")
def test_an_empty_place_is_not_taken_for_that_of_the_files_of_a_store_in_use(tmp_path: Path) -> None:
    """A mistyped bucket was accepted: new files went there, and no server had all of them any more."""
    for name in ("objects", "mistyped"):
        (tmp_path / name).mkdir()
    with running(tmp_path, 1, objects=f"file://{tmp_path}/objects") as cluster:
        owner = trio.run(cluster.owner)
        told = refusal(Server(tmp_path, cluster.address_of_store, "x", objects=f"file://{tmp_path}/mistyped"))
        assert f"file://{tmp_path}/mistyped has no files of the store" in told
        assert list((tmp_path / "mistyped").iterdir()) == []
        owner.kill()
        owner.start()
        assert trio.run(cluster.owner) is owner


def test_a_directory_of_a_server_on_its_own_is_no_copy_of_a_store(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    server = server_of(tmp_path, f"file://{tmp_path}/store")
    server.data.mkdir()
    (server.data / "FORMAT").write_text('{"version": 2, "node_id": "0123456789abcdef", "complete": false}')
    assert "belongs to a server on its own, not to a store (--store)" in refusal(server)


@pytest.mark.parametrize("store_id", ["", "ab" * 16])
@pytest.mark.parametrize("is_divided", [False, True])
def test_a_start_that_is_refused_for_its_directory_leaves_nothing_in_an_empty_log_store(
    tmp_path: Path, store_id: str, *, is_divided: bool
) -> None:
    """A mistyped address made a store there, with an identity and the addresses of a server."""
    for name in ("log", "objects"):
        (tmp_path / name).mkdir()
    server = Server(tmp_path, f"file://{tmp_path}/log", "x", objects=f"file://{tmp_path}/objects" if is_divided else "")
    server.data.mkdir()
    version = 3 if store_id else 2
    content = {"version": version, "node_id": "ab" * 8, "complete": False, **({"store": store_id} if store_id else {})}
    (server.data / "FORMAT").write_text(json.dumps(content))
    told = refusal(server)
    assert ("no store lies at the address of --store" if store_id else "belongs to a server on its own") in told
    assert [path for name in ("log", "objects") for path in (tmp_path / name).iterdir()] == []


@pytest.mark.slow("starts a server twice")
def test_a_start_with_the_directory_of_another_store_changes_nothing_in_the_log_store(tmp_path: Path) -> None:
    """It wrote its addresses there, and 32 rivals raced for an object."""
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    for name in ("first", "second"):
        with running(tmp_path / name, 1) as cluster:
            owner = trio.run(cluster.owner)
            owner.send(signal.SIGTERM)
            owner.wait()
    other = Server(tmp_path, f"file://{tmp_path}/first/store", "x")
    other.data = owner.data
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "first" / "store").rglob("*")}
    assert "not of" in refusal(other)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "first" / "store").rglob("*")} == before


@pytest.mark.slow("starts a server that waits for a log store, and stops it")
def test_a_server_that_waits_for_its_log_store_stops_within_seconds(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        place = f"postgresql://anna@127.0.0.1:{mute.getsockname()[1]}/db"
        server = server_of(tmp_path, place)
        server.start()
        try:
            connection, _ = mute.accept()
            with connection:
                server.send(signal.SIGTERM)
                assert server.wait() == 0
        finally:
            server.kill()


@pytest.mark.parametrize("requests_before", range(6))
async def test_two_first_servers_of_a_store_do_not_refuse_each_other(requests_before: int) -> None:
    """The other one makes the log, the place of the files and its claim between two requests of this one."""
    log, files = MemoryLogStore(), MemoryLogStore()
    rival = Member("plant", b"S" * 16, b"R" * 16)
    requests = 0

    class Watched(MemoryLogStore):
        """Has the rival act before one of the requests."""

        def __init__(self, store: MemoryLogStore) -> None:
            super().__init__()
            self._store = store

        def _pass(self) -> MemoryLogStore:
            nonlocal requests
            requests += 1
            if requests == requests_before:
                run_steps(log, identify("plant", b"S" * 16, b"R" * 16, bytes(16), Holds.LOG))
                run_steps(files, identify("plant", b"S" * 16, b"R" * 16, bytes(16), Holds.FILES))
                run_steps(log, own(rival, bytes(16)))
            return self._store

        def get(self, key: str) -> bytes | None:
            return self._pass().get(key)

        def list_after(self, key: str) -> list[str]:
            return self._pass().list_after(key)

    here, beside = StoreAddress.parse("s3://bucket/plant"), StoreAddress.parse("s3://files/plant")
    await _check_places(here, Watched(log), beside, Watched(files))
    assert requests >= 3
