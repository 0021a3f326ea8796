"""Carrying files by a process of its own, so that the event loop does not notice it.

A file is read, summed, copied and sent in pieces of some MiB. In a thread of the server each of these takes the
interpreter from the event loop for milliseconds. `journal.engine.shared_log.transfer_worker` is the other end.

Requests and what the process says are lines of JSON. It says something after each request of the log store and each
step on a disk: so it is known how many requests it made, also if it is killed, and that it does not hang. A process
that ended or hangs is replaced, and the transfer begins again. A piece that is stored already is found as such, since
its bytes are the same.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import attrs
import msgspec
import trio

from journal.engine.shared_log.transfers import Content
from journal.engine.workers.process import WorkerFailedError, WorkerProcess
from journal.logstore import errors
from journal.logstore.counting import RequestCounts
from journal.logstore.errors import LogStoreError, StoreUnreachableError
from journal.logstore.keys import FileName
from journal.logstore.ownership import Member
from shards.back_off import BackOff

SILENT_S: Final = 60.0
"""A process that says nothing for so long hangs: it is several times as long as a request of any log store may take."""

_ATTEMPTS: Final = 5
_DELAYS: Final = BackOff(first_s=0.05, longest_s=5.0)
_IDLE_S: Final = 60.0
"""After so long without a transfer the process is ended, which frees its memory."""

_WORKER: Final = "the process that transfers files"

_ERRORS: Final = {
    kind.__name__: kind
    for kind in (
        errors.UnknownOutcomeError,
        errors.StoreUnreachableError,
        errors.StoreCredentialsError,
        errors.StoreFullError,
        errors.ForeignStoreError,
        errors.LogDamagedError,
    )
}
"""The errors that storing and fetching raise, by their names."""

_log = logging.getLogger("journal.engine")


@attrs.frozen(slots=True)
class Place:
    """Which store the process works for. It is sent with each request: nothing of it is on a command line.

    Attributes:
        addresses: Those of the log store. They have no secrets in them; the process gets the environment.
        root, store_id, node_id: Those of the `Member`; the ids in hexadecimal digits.
    """

    addresses: tuple[str, ...]
    root: str
    store_id: str
    node_id: str

    @property
    def member(self) -> Member:
        return Member(self.root, bytes.fromhex(self.store_id), bytes.fromhex(self.node_id))


@attrs.frozen(slots=True)
class TransferRequest:
    """What the process is to do with a file.

    Attributes:
        place: See there.
        path: Where the file lies, or is to be written.
        day, file_id: Its `FileName`.
        upload: Store it, with this nonce of hexadecimal digits.
        download: Fetch it. Without ``upload`` and ``download`` it is read.
    """

    place: Place
    path: str
    day: int = 0
    file_id: int = 0
    upload: str = ""
    download: bool = False

    @property
    def name(self) -> FileName:
        return FileName(self.day, self.file_id)

    def __str__(self) -> str:
        if self.upload:
            return f"storing {self.path} as {self.name}"
        return f"fetching {self.name}" if self.download else f"reading {self.path}"


@attrs.frozen(slots=True)
class Said:
    """What the process says.

    Attributes:
        requests: Requests that it made of the log store since it said something last.
        is_done: Whether the transfer has ended. The other attributes tell how.
        content: What was written, read or stored; None if the log store has no such file, or after an error. Of a
            file that was stored, the digest is left empty.
        error: Name of an error of `journal.logstore.errors`, and its message.
        os_error: Number, text and path of an error of the file system.
    """

    requests: RequestCounts = attrs.field(factory=RequestCounts)
    is_done: bool = False
    content: Content | None = None
    error: tuple[str, str] | None = None
    os_error: tuple[int, str, str] | None = None


class WorkerTransfers:
    """`Transfers` by a process, which is started when there is something to transfer. One file at a time.

    Args:
        addresses: Those of the log store.
        member: This server, and the store.
        count: Is called with the requests of the log store that the process made.
        command: Starts the process; for tests.
        silent_s: See `SILENT_S`.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        member: Member,
        count: Callable[[RequestCounts], None],
        command: tuple[str, ...] = (sys.executable, "-m", "journal.engine.shared_log.transfer_worker"),
        silent_s: float = SILENT_S,
    ) -> None:
        self._place = Place(tuple(addresses), member.root, member.store_id.hex(), member.node_id.hex())
        self._count = count
        self._worker = WorkerProcess(_WORKER, command)
        self._silent_s = silent_s
        self._turn = trio.Lock()
        self._used_at = trio.current_time()

    @property
    def pid(self) -> int | None:
        """The id of the process, None while there is none."""
        return self._worker.pid

    @asynccontextmanager
    async def running(self) -> AsyncIterator[WorkerTransfers]:
        """End the process when it was idle for a while, and with the block."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_when_idle)
            try:
                yield self
            finally:
                nursery.cancel_scope.cancel()
                await self._worker.rest()

    async def _end_when_idle(self) -> None:
        while True:
            await trio.sleep(_IDLE_S)
            async with self._turn:
                if trio.current_time() - self._used_at >= _IDLE_S:
                    await self._worker.rest()

    async def upload(self, name: FileName, path: str, nonce: bytes) -> int:
        content = await self._carry_out(TransferRequest(self._place, path, name.day, name.file_id, nonce.hex()))
        if content is None:
            raise self._misunderstood()
        return content.size_bytes

    async def download(self, name: FileName, path: str) -> Content | None:
        return await self._carry_out(TransferRequest(self._place, path, name.day, name.file_id, download=True))

    async def digest(self, path: str) -> Content:
        content = await self._carry_out(TransferRequest(self._place, path))
        if content is None:
            raise self._misunderstood()
        return content

    def _misunderstood(self) -> StoreUnreachableError:
        self._worker.kill()
        return StoreUnreachableError(f"{_WORKER} answered another request")

    async def _carry_out(self, request: TransferRequest) -> Content | None:
        async with self._turn:
            for failures in range(1, _ATTEMPTS + 1):
                try:
                    said = await self._ask(request)
                except WorkerFailedError as error:
                    if failures == _ATTEMPTS:
                        raise StoreUnreachableError(f"{request} failed {failures} times: {error}") from error
                    _log.warning("%s begins again: %s", request, error)
                    await trio.sleep(_DELAYS.delay_s(failures))
                else:
                    break
            self._used_at = trio.current_time()
        return _result_of(said)

    async def _ask(self, request: TransferRequest) -> Said:
        try:
            await self._worker.send([msgspec.json.encode(request) + b"\n"])
            while True:
                said = await self._heard()
                self._count(said.requests)
                if said.is_done:
                    return said
        except BaseException:
            # A late answer must not be taken for the answer to the next request.
            self._worker.kill()
            raise

    async def _heard(self) -> Said:
        with trio.move_on_after(self._silent_s) as waiting:
            line = await self._worker.receive()
        if waiting.cancelled_caught:
            raise WorkerFailedError(
                f"{_WORKER} (pid {self._worker.pid}) said nothing for {self._silent_s:g} s, and was killed"
            )
        try:
            return msgspec.json.decode(line, type=Said)
        except msgspec.DecodeError as error:
            raise WorkerFailedError(f"{_WORKER} said {line[:80]!r}: {error}") from error


def _result_of(said: Said) -> Content | None:
    if said.os_error is not None:
        raise OSError(*said.os_error)
    if said.error is not None:
        kind, message = said.error
        raise _ERRORS.get(kind, LogStoreError)(message)
    return said.content
