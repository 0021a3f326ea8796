"""Files are carried to and from the log store by a process of its own, which may be killed, hang or fail."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

from journal.engine.shared_log.stored_files import StoredFiles
from journal.engine.shared_log.transfers import Content, DirectTransfers, Transfers
from journal.engine.shared_log.worker_transfers import WorkerTransfers
from journal.engine.wal.disk import in_thread
from journal.logstore.counting import RequestCounts
from journal.logstore.errors import LogDamagedError, StoreUnreachableError
from journal.logstore.keys import FileName, file_folder
from journal.logstore.ownership import Member
from journal.logstore.pieces import PIECE_BYTES, piece_count
from journal.logstore.stores.directory import DirectoryLogStore
from shards.errors import ConversionFailedError
from shards.seams.os_file_system import OsFileSystem
from tests.cluster.numbers import QUICK, Numbers, create, restart
from tests.cluster.servers import Server, running
from tests.cluster.writing import connected
from tests.patience import PATIENCE_S

MEMBER: Final = Member("journal", b"S" * 16, b"N" * 16)
NAME: Final = FileName(20_784, 1)
NONCE: Final = bytes(16)
SIZE_BYTES: Final = 3 * PIECE_BYTES + 1
ENDS: Final = (sys.executable, "-c", "import sys; sys.stdin.readline()")
BABBLES: Final = (
    sys.executable,
    "-c",
    "import sys; sys.stdin.readline(); print('what?', flush=True); sys.stdin.read()",
)


def ignore(requests: RequestCounts) -> None:
    pass


class Place:
    """A log store in a directory, and files beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "store").mkdir()
        self.store = DirectoryLogStore(str(path / "store"))

    def worker(self, count: Callable[[RequestCounts], None] = ignore, **options: object) -> WorkerTransfers:
        return WorkerTransfers([f"file://{self.path / 'store'}"], MEMBER, count, **options)  # type: ignore[arg-type]

    def direct(self) -> DirectTransfers:
        return DirectTransfers(self.store, MEMBER, OsFileSystem(), in_thread)

    def file(self, size_bytes: int) -> tuple[str, Content]:
        content = secrets.token_bytes(size_bytes)
        (self.path / "file").write_bytes(content)
        return str(self.path / "file"), Content(size_bytes, hashlib.sha256(content).hexdigest())

    def pieces(self) -> int:
        return len(self.store.list_after(file_folder("journal")))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@asynccontextmanager
async def opened(place: Place, kind: str) -> AsyncIterator[Transfers]:
    if kind == "in this process":
        yield place.direct()
    else:
        async with place.worker().running() as transfers:
            yield transfers


in_both_ways = pytest.mark.parametrize("kind", ["in this process", "in a worker"])


@in_both_ways
@pytest.mark.parametrize("size_bytes", [0, 1, SIZE_BYTES])
async def test_a_file_comes_back_as_it_was_stored(place: Place, kind: str, size_bytes: int) -> None:
    path, content = place.file(size_bytes)
    async with opened(place, kind) as transfers:
        assert await transfers.digest(path) == content
        assert await transfers.upload(NAME, path, NONCE) == size_bytes
        Path(f"{path}.back").write_bytes(b"longer than what comes" * 2)
        assert await transfers.download(NAME, f"{path}.back") == content
    assert Path(f"{path}.back").read_bytes() == Path(path).read_bytes()
    assert place.pieces() == piece_count(size_bytes)


@in_both_ways
async def test_what_goes_wrong_has_the_same_name_wherever_it_happens(place: Place, kind: str) -> None:
    path, _ = place.file(10)
    async with opened(place, kind) as transfers:
        assert await transfers.download(NAME, f"{path}.back") is None
        with pytest.raises(FileNotFoundError):
            await transfers.upload(NAME, f"{path}.missing", NONCE)
        with pytest.raises(FileNotFoundError):
            await transfers.digest(f"{path}.missing")
        with pytest.raises(IsADirectoryError):
            await transfers.download(NAME, str(place.path))
        await transfers.upload(NAME, path, NONCE)
        await transfers.upload(NAME, path, NONCE)
        with pytest.raises(LogDamagedError, match="exists already, with other bytes"):
            await transfers.upload(NAME, path, b"another nonce...")


@pytest.mark.slow("waits until a process is taken to hang")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("direction", ["upload", "download"])
async def test_a_process_that_is_killed_or_hangs_is_replaced_and_the_file_is_whole(
    place: Place, number: signal.Signals, direction: str
) -> None:
    path, content = place.file(SIZE_BYTES)
    if direction == "download":
        await place.direct().upload(NAME, path, NONCE)
    counted: list[RequestCounts] = []
    pids: list[int] = []

    def count(requests: RequestCounts) -> None:
        counted.append(requests)
        if not pids and requests.creates + requests.gets:
            pid = transfers.pid
            assert pid is not None
            pids.append(pid)
            os.kill(pid, number)

    async with place.worker(count, silent_s=2.0).running() as transfers:
        if direction == "upload":
            assert await transfers.upload(NAME, path, NONCE) == SIZE_BYTES
        else:
            assert await transfers.download(NAME, f"{path}.back") == content
        assert transfers.pid not in pids
        assert not lives(pids[0])
    assert await place.direct().download(NAME, f"{path}.whole") == content
    assert place.pieces() == 4
    # The first piece was stored or fetched by both processes.
    assert sum(each.creates if direction == "upload" else each.gets for each in counted) >= 5


@pytest.mark.slow("starts a process five times")
@pytest.mark.parametrize(("command", "message"), [(ENDS, "exit status 0"), (BABBLES, "said b'what")])
async def test_nothing_is_named_if_every_attempt_fails_and_the_next_time_it_is_stored(
    place: Place, command: tuple[str, ...], message: str
) -> None:
    path, content = place.file(SIZE_BYTES)
    async with place.worker(command=command).running() as failing, place.worker().running() as working:
        for transfers in (failing, working):
            stored = StoredFiles(place.store, MEMBER, OsFileSystem(), in_thread, transfers)
            was_named = False
            try:
                async with stored.stored([(NAME, path)]):
                    was_named = True
            except ConversionFailedError as error:
                assert message in str(error)
                assert transfers is failing
            assert was_named is (transfers is working)
    assert await place.direct().download(NAME, f"{path}.back") == content


async def test_a_log_store_that_cannot_be_opened_is_opened_at_the_next_request(place: Place) -> None:
    """The process ended, with an abort of the interpreter."""
    path, content = place.file(10)
    async with place.worker().running() as transfers:
        (place.path / "store").rename(place.path / "away")
        with pytest.raises(StoreUnreachableError, match="is no directory"):
            await transfers.upload(NAME, path, NONCE)
        pid = transfers.pid
        (place.path / "away").rename(place.path / "store")
        assert await transfers.upload(NAME, path, NONCE) == content.size_bytes
        assert transfers.pid == pid


@pytest.mark.slow("starts a process twice")
async def test_a_cancelled_transfer_writes_nothing_after_the_next_one_has_begun(place: Place) -> None:
    path, content = place.file(SIZE_BYTES)
    await place.direct().upload(NAME, path, NONCE)
    scope = trio.CancelScope()
    async with place.worker(lambda requests: scope.cancel() if requests.gets else None).running() as transfers:
        with scope:
            await transfers.download(NAME, f"{path}.back")
        assert scope.cancelled_caught
        assert await transfers.download(NAME, f"{path}.back") == content


async def test_the_process_ends_with_its_engine(place: Place) -> None:
    path, _ = place.file(1)
    async with place.worker().running() as transfers:
        await transfers.digest(path)
        pid = transfers.pid
        assert pid is not None
        assert lives(pid)
    assert not lives(pid)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# With a server


def worker_of(server: Server) -> int | None:
    """The process that transfers files for a server, if there is one."""
    for child in server.children():
        if b"transfer_worker" in command_of(child):
            return child
    return None


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def requests_of(server: Server) -> dict[str, float]:
    found = re.findall(r'^journal_log_requests_total{kind="([a-z]+)"} (.+)$', server.get("/metrics")[1], re.MULTILINE)
    return {kind: float(value) for kind, value in found}


@pytest.mark.slow("waits until closed segments are converted, and kills a process again and again")
async def test_a_checkpoint_is_whole_though_the_process_that_stores_it_is_killed_again_and_again(
    tmp_path: Path,
) -> None:
    numbers = Numbers()
    with running(tmp_path, 1, settings=QUICK) as cluster:
        (server,) = cluster.servers
        folder = tmp_path / "store" / "journal"
        killed: set[int] = set()
        async with connected(cluster) as client:
            await create(client)
            with trio.fail_after(PATIENCE_S):
                while len(list((folder / "checkpoint").glob("*"))) < 2 or len(killed) < 3:
                    await numbers.append(client, 1)
                    pid = worker_of(server)
                    if pid is not None and len(killed) < 3:
                        assert b"file://" not in command_of(pid)
                        assert b"transfer" in command_of(pid)
                        killed.add(pid)
                        os.kill(pid, signal.SIGKILL)
                    await trio.sleep(0.02)
            pieces = len(list((folder / "file").glob("*")))
            assert requests_of(server)["create"] >= pieces
            # Everything that the checkpoint names is there, and comes back.
            restart(server, with_nothing=True)
            await numbers.go_on(client)
        assert "began with the checkpoint" in server.log.read_text()
        assert "begins again" in server.log.read_text()


@pytest.mark.slow("waits until a closed segment is converted")
async def test_the_process_ends_when_the_server_is_killed_even_if_it_was_suspended(tmp_path: Path) -> None:
    numbers = Numbers()
    with running(tmp_path, 1, settings=QUICK) as cluster:
        (server,) = cluster.servers
        async with connected(cluster) as client:
            await create(client)
            with trio.fail_after(PATIENCE_S):
                while (pid := worker_of(server)) is None:
                    await numbers.append(client, 1)
                    await trio.sleep(0.02)
        os.kill(pid, signal.SIGSTOP)
        server.kill()
        os.kill(pid, signal.SIGCONT)
        with trio.fail_after(PATIENCE_S):
            while command_of(pid):
                await trio.sleep(0.02)
