"""The log of a store as one server of a cluster uses it: it reads it, becomes its owner, and notices that it is not."""

from __future__ import annotations

import enum
import hmac
import logging
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol, TypeVar

import trio

from journal.engine.shared_log.claims import Addresses, Claim, claim_of, encode_claim, window_of
from journal.engine.shared_log.isolation import Isolation
from journal.engine.shared_log.read_ahead import ReadAhead
from journal.engine.shared_log.repetition import until_answered
from journal.engine.shared_log.slot_groups import SlotGroup, decode_groups
from journal.engine.shared_log.stored_files import StoredFiles
from journal.engine.shared_log.stored_views import StoredViews
from journal.engine.shared_log.transfers import DirectTransfers
from journal.engine.shared_log.worker_transfers import WorkerTransfers
from journal.engine.shared_log.writer import ResumePoint, SharedLogWriter
from journal.engine.wal.disk import OffLoop
from journal.engine.wal.journal_writer import JournalWriter
from journal.logstore.counting import CountedLogStore
from journal.logstore.driver import drive
from journal.logstore.errors import MAY_PASS, LogDamagedError, LogStoreError, StoreDeposedError
from journal.logstore.health import RequestHealth, Trouble, WatchedLogStore
from journal.logstore.keys import BEGINNING, checkpoint_key, slot_key
from journal.logstore.objects import ID_BYTES
from journal.logstore.ownership import Member, check_owned, newest_claim, own, read_claim
from journal.logstore.reading import AtTail, LogReader, SlotRead
from journal.logstore.store import LogStore
from journal.logstore.writing import SlotWriter
from shards.errors import NotOwnerError
from shards.seams.file_system import FileSystem

_T = TypeVar("_T")

_LOOK_S: Final = 1.0
"""How often an owner looks for a claim by another server."""

_LOOK_FOR_CHECKPOINTS_S: Final = 10.0
"""How often a follower to which nothing new seems to be in the log looks whether it is behind the collection."""

_LOSE_S: Final = 1.0
"""How long a server that has lost the store asks the log store for the new owner, beside the request under way."""

_REFUSED_S: Final = 0.5
"""How long a server waits after the log store refused its claim, or a fence."""

NOWHERE: Final = ResumePoint(BEGINNING, 1)
"""Where a server begins that has nothing of the log."""

_log = logging.getLogger("journal.engine")


class BehindLogError(LogStoreError):
    """What this server has of the log is older than what the log store has: it has to begin with a checkpoint."""

    code = "behind_log"


class Decision(enum.Enum):
    """What a server that follows the log does next."""

    FOLLOW = "follow"
    LOOK = "look whether there is a newer claim, and follow"
    TAKE_OVER = "take the store over"


class Takeover(Protocol):
    """Decides when a server that follows the log takes the store over."""

    async def wait(self, claim: Claim, *, has_moved: bool) -> Decision:
        """Wait a moment before the log is looked at again.

        Args:
            claim: The newest claim that is known. It is the newest one after the answer `Decision.LOOK`.
            has_moved: Whether something was read from the log since the last call.
        """
        ...


class SharedLog:
    """The log of one store.

    Args:
        store: Where it lies. Closed by the caller.
        member: This server, and the store.
        addresses: Where the other servers and clients reach this one.
        takeover: Decides when it takes the store over.
        largest_group_bytes: Bound on the entries of one group that it writes.
        window: How many slots it writes at a time.
        interval_s: Time between two slots that are not full, at least, in seconds.

    Attributes:
        claim: The newest claim that was seen.
        former: The newest claim of another server when this one claimed the store last.
        epoch: The epoch that this server owns; None if it owns none.
        isolation: Whether this server, as an owner, can know that it still is one.
        slots_read: Slots read since the start.
    """

    def __init__(
        self,
        store: LogStore,
        member: Member,
        addresses: Addresses,
        takeover: Takeover,
        largest_group_bytes: int,
        window: int = 1,
        interval_s: float = 0.0,
    ) -> None:
        self._watched = WatchedLogStore(store)
        self._store = CountedLogStore(self._watched)
        # It is asked until it succeeds, so a failure counts until then.
        self._files = RequestHealth("no file could be fetched from the log store", lasts_s=math.inf)
        self._member = member
        self._addresses = addresses
        self._takeover = takeover
        self._largest_group_bytes = largest_group_bytes
        self._window = window
        self._interval_s = interval_s
        self._transfers: WorkerTransfers | None = None
        self._limiter = trio.CapacityLimiter(1)
        self._reader = LogReader(member)
        self._ahead = ReadAhead(self._store, member.root)
        self._writer: SharedLogWriter | None = None
        self._has_moved = False
        self._looks_for_claims = True
        self._looked_at = -_LOOK_FOR_CHECKPOINTS_S
        self._nonce = b""
        self._successor = trio.Event()
        self.claim = Claim()
        self.former = Claim()
        self.epoch: int | None = None
        self.isolation = Isolation()
        self.slots_read = 0

    @asynccontextmanager
    async def transferring(self, places: Sequence[str]) -> AsyncIterator[None]:
        """Let a process of its own carry files to and from the log store within the block.

        Args:
            places: The addresses of the log store: that of the log, and that of the files if it is another one.
        """
        async with WorkerTransfers(places, self._member, self._store.add).running() as self._transfers:
            yield
        self._transfers = None

    @property
    def store_id(self) -> str:
        """The id of the store, 32 hexadecimal digits."""
        return self._member.store_id.hex()

    @property
    def next_lsn(self) -> int:
        """The lsn after the last entry that this server has read from the log, or written to it."""
        return self._reader.next_lsn if self._writer is None else self._writer.next_lsn

    @property
    def trouble(self) -> Trouble | None:
        """Says that the log store has not answered as it should for some seconds; None if nothing is wrong.

        A server that does not own the store needs no writes. One that owns it does its work without the files of the
        history that it has not fetched: no other server has to take over.
        """
        if self.epoch is None:
            return self._watched.reads.trouble or self.trouble_with_files
        return self._watched.writes.trouble or self._watched.reads.trouble

    @property
    def trouble_with_files(self) -> Trouble | None:
        """Says that no file of the history could be fetched for some seconds; None if nothing is wrong, or needed."""
        return self._files.trouble

    async def until_fetched(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """Ask for files until the log store gives them. What this comes to is noted here: another process fetches them.

        Raises:
            LogStoreError: It will not give them without a change.
        """

        async def attempt() -> _T:
            with self._files.request(is_long=True):
                return await request()

        return await until_answered(attempt)

    def stored_views(self, files: FileSystem, off_loop: OffLoop) -> StoredViews:
        """The checkpoints and files in the log store, for one opening of the data directory."""
        transfers = self._transfers or DirectTransfers(self._store, self._member, files, off_loop)
        stored = StoredFiles(self._store, self._member, files, off_loop, transfers)
        return StoredViews(self._store, self._member, stored, files, off_loop)

    def resume(self, next_lsn: int) -> ResumePoint:
        """Where reading goes on later, if this server keeps everything before an lsn: there or earlier."""
        if self._writer is not None:
            return self._writer.resume(next_lsn)
        assert self._reader.next_lsn <= next_lsn
        return ResumePoint(self._reader.position, self._reader.next_lsn)

    def begin(self, resume: ResumePoint) -> None:
        """Begin to read there. Called once for each time that the data directory is opened."""
        self._writer = None
        self._reader = LogReader(self._member, first_lsn=resume.next_lsn)
        self._reader.position = resume.position
        self._ahead = ReadAhead(self._store, self._member.root)

    async def read(self, next_lsn: int) -> list[SlotGroup] | None:
        """The groups of the next slots that have something from this lsn on: of one, or of several that are here.

        Returns:
            None at the end of the log.

        Raises:
            BehindLogError: The slot was removed after a checkpoint was stored.
            LogDamagedError: An object is damaged or missing, or the lsn is not between two slots.
            LogStoreError: The store cannot be read.
        """
        groups: list[SlotGroup] = []
        while not groups or self._ahead.has(self._reader.position):
            if not self._ahead.has(self._reader.position):
                await self._ahead.read(self._reader.position)
            try:
                found = await self._read_slot(next_lsn)
            except MAY_PASS:
                if groups:
                    # They are past the reader. The next call meets the error again.
                    return groups
                raise
            if found is None:
                return groups or None
            groups += found
            next_lsn = max(next_lsn, self._reader.next_lsn)
        return groups

    async def _read_slot(self, next_lsn: int) -> list[SlotGroup] | None:
        """The groups of the next slot, none if it ends before this lsn; None at the end of the log."""
        key = slot_key(self._member.root, self._reader.position)
        steps = self._reader.read(self.epoch, looks_for_checkpoints=self.epoch is not None or self._looks_now())
        found = await drive(self._store, steps, self._limiter, known=self._ahead.take)
        self._ahead.note(is_slot=isinstance(found, SlotRead))
        if isinstance(found, AtTail):
            if self._reader.next_lsn < next_lsn:
                raise LogDamagedError(
                    f"the log ends at lsn {self._reader.next_lsn - 1}, but this server has lsn {next_lsn - 1} of it"
                )
            return None
        if not isinstance(found, SlotRead):
            raise BehindLogError(
                f"{key} was removed from the log store, which has the checkpoint "
                f"{checkpoint_key(self._member.root, found.checkpoint.position)}"
            )
        self.slots_read += 1
        self._has_moved = True
        if found.slot.next_lsn <= next_lsn:
            # The journal of this server has it.
            return []
        if found.slot.first_lsn != next_lsn:
            raise LogDamagedError(
                f"{key} begins with lsn {found.slot.first_lsn}, but what this server has of the log ends with "
                f"{next_lsn - 1}"
            )
        return list(decode_groups(key, found.slot.body))

    def _looks_now(self) -> bool:
        """Whether a missing slot may have been collected; a listing each time that nothing is new would cost a lot."""
        now = trio.current_time()
        if now - self._looked_at < _LOOK_FOR_CHECKPOINTS_S:
            return False
        self._looked_at = now
        return True

    async def wait(self) -> bool:
        """Called at the end of the log: wait a moment, and take the store over if it is time.

        Returns:
            Whether this server owns it now. Then it reads the rest of the log.
        """
        if self._looks_for_claims:
            self.claim = await self._newest_claim()
        has_moved, self._has_moved = self._has_moved, False
        decision = await self._takeover.wait(self.claim, has_moved=has_moved)
        self._looks_for_claims = decision is Decision.LOOK
        if decision is not Decision.TAKE_OVER:
            return False
        if self.claim.server_id != self._member.node_id.hex():
            # Otherwise this server has claimed the store before, and was not let further.
            self.former = self.claim
        nonce = secrets.token_bytes(ID_BYTES)
        about = encode_claim(self._addresses, self._window)
        steps = own(self._member, nonce, self.claim.epoch, about, gives_way=True, window_of=window_of)
        try:
            ownership = await drive(self._store, steps, self._limiter)
        except StoreDeposedError:
            # Another server was faster.
            self._looks_for_claims = True
            return False
        except MAY_PASS as error:
            # As long as nothing can be written there, no server is better than the present owner. The claim may have
            # been written, and then this server is to try again: a refused request takes no time.
            _log.warning("the store could not be taken over: %s", error)
            self._looks_for_claims = True
            await trio.sleep(_REFUSED_S)
            return False
        self.epoch = ownership.epoch
        self.isolation.begin()
        self._nonce = nonce
        self._successor = trio.Event()
        self.claim = Claim(ownership.epoch, self._member.node_id.hex(), self._addresses, nonce)
        return True

    def accept_notice(self, epoch: int, owner: str, nonce: bytes) -> None:
        """Another server has sent the notice that it has claimed the store.

        Args:
            epoch: Its epoch. It is not believed any further: claims are looked for after the own one.
            owner: ``HOST:PORT`` of its native protocol, for clients.
            nonce: That of the claim of this server, which only who reads the log store knows.
        """
        if self.epoch is not None and epoch > self.epoch and hmac.compare_digest(nonce, self._nonce):
            self.claim = Claim(self.epoch, "", Addresses(owner))
            self._successor.set()

    async def _newest_claim(self) -> Claim:
        epoch = await drive(self._store, newest_claim(self._member.root, self.claim.epoch), self._limiter)
        if epoch == self.claim.epoch and self.claim.server_id:
            return self.claim
        claim = await drive(self._store, read_claim(self._member, epoch), self._limiter)
        return Claim(epoch) if claim is None else claim_of(claim)

    def writer(self, journal: JournalWriter, written: Callable[[ResumePoint], None]) -> SharedLogWriter:
        """What writes the groups of this server from now on. It owns the store, and has read the log to its end.

        Args:
            journal: The journal of this server.
            written: Called in the disk thread when the journal has everything before a position.
        """
        assert self.epoch is not None
        slots = SlotWriter(self._member, self.epoch, self._reader.next_lsn, self._window)
        self._writer = SharedLogWriter(
            self._store,
            slots,
            journal,
            self._largest_group_bytes,
            written,
            self._interval_s,
            trouble=lambda: self.trouble,
            isolation=self.isolation,
        )
        return self._writer

    async def watch(self, deposed: Callable[[NotOwnerError], None]) -> None:
        """Look for a claim by another server, once a second, until there is one. Then call ``deposed`` at once.

        The error has the address of the next owner if it is known already. Who it is takes another request, which may
        not be answered for long, and meanwhile nothing may be acknowledged: `lose` finds that out.

        A store that does not answer is no reason to give it up: as long as no other server is known to own it, nothing
        that is read here can be wrong, and nothing is acknowledged without it. But the next owner informs this one
        (`accept_notice`), whose clients would wait here until the store answers.
        """
        assert self.epoch is not None
        async with trio.open_nursery() as looking:
            looking.start_soon(self._look_for_claims, self.epoch)
            await self._successor.wait()
            looking.cancel_scope.cancel()
            self.epoch = None
            self._looks_for_claims = True
            # Not after the block: the request that is under way ends first, which takes as long as a store is silent.
            deposed(NotOwnerError(self.claim.addresses.tcp))

    async def _look_for_claims(self, epoch: int) -> None:
        while True:
            await trio.sleep(_LOOK_S)
            began = self.isolation.now()
            try:
                await drive(self._store, check_owned(self._member.root, epoch), self._limiter)
            except StoreDeposedError:
                break
            except LogStoreError:
                continue
            self.isolation.owned(began)
        if not self._successor.is_set():
            # Otherwise the next owner itself has sent its address meanwhile.
            self.claim = Claim(epoch)
            self._successor.set()

    async def lose(self) -> None:
        """This server does not own the store any more. Find out who does, if the store answers."""
        self.epoch = None
        self._looks_for_claims = True
        with trio.move_on_after(_LOSE_S), suppress(LogStoreError):
            # It is asked again when this server follows.
            self.claim = await self._newest_claim()
        if self.claim.server_id == self._member.node_id.hex():
            self.claim = Claim(self.claim.epoch)
