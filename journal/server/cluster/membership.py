"""This server as one of those that share a store: it joins the store, follows its log, and answers for its owner."""

from __future__ import annotations

import math
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import structlog
import trio

from journal.engine import Addresses, Claim, SharedLog
from journal.engine.directory.data_directory import require_store, store_of
from journal.logstore.driver import drive
from journal.logstore.errors import MAY_PASS, ForeignStoreError, LogStoreError
from journal.logstore.health import Trouble
from journal.logstore.objects import ID_BYTES
from journal.logstore.ownership import Member, newest_claim
from journal.logstore.probe import Holds, Identity, identify, probe, read_identity, told_of
from journal.logstore.store import LogStore
from journal.logstore.stores.addresses import StoreAddress
from journal.logstore.stores.divided import DividedLogStore
from journal.net.listening import reached_at
from journal.server.cluster.listing import listed
from journal.server.cluster.liveness import (
    CLAIMED_HEADER,
    EPOCH_HEADER,
    FOLLOWS_HEADER,
    LSN_HEADER,
    SERVER_HEADER,
    Life,
    Notice,
    ask,
    send_notice,
)
from journal.server.cluster.standby import answer_clients
from journal.server.cluster.takeover import OwnerWatch
from journal.settings.server import ServerConfig
from journal.settings.values import ConfigurationError
from shards.back_off import BackOff
from shards.errors import InvalidRequestError
from shards.seams.os_file_system import OsFileSystem

_ENTRIES_BYTES: Final = 64 * 1024
"""Room in a group for the headers of entries, beyond the longest frame."""

_LOOK_AT_HEALTH_S: Final = 0.5
_LOOK_AT_ASKED_S: Final = 0.5
_ASKED_AFTER_S: Final = 1.5
"""An owner that was not asked for so long is asked again: it counts on that (`shared_log.isolation.ISOLATED_S`)."""

_MOST_NOTICES: Final = 100
_NOTICES: Final = BackOff(first_s=0.2, longest_s=10.0)
"""Between attempts to reach the former owner: some fifteen minutes in all."""


log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


class SeenOwner:
    """Asks the owner of the store whether it is alive, and remembers how much of the log it has.

    Attributes:
        asked_at: When it was asked last, by trio's clock.
    """

    def __init__(self) -> None:
        self.asked_at = -math.inf
        self._epoch = 0
        self._lsn: int | None = None

    async def ask(self, claim: Claim) -> Life:
        """Ask the server of a claim."""
        self.asked_at = trio.current_time()
        addresses = claim.addresses
        seen = await ask(addresses.http, claim.server_id, claim.epoch, encrypted=addresses.encrypted, follows=True)
        if seen.lsn is not None:
            self._epoch, self._lsn = claim.epoch, seen.lsn
        return seen.life

    def lsn_in(self, epoch: int) -> int | None:
        """The newest lsn of the owner in an epoch, when it was asked last; None if it has not told."""
        return self._lsn if self._epoch == epoch else None


class Membership:
    """See the module.

    Args:
        owner: Asks the owner.
        place: The address of the log store, for people.
        encrypted: Whether the listeners use TLS.

    Attributes:
        server_id: The id of this process, 32 hexadecimal digits.
        log: The log of the store.
    """

    def __init__(self, server_id: str, log: SharedLog, owner: SeenOwner, place: str, *, encrypted: bool) -> None:
        self._owner = owner
        self._place = place
        self.server_id = server_id
        self.log = log
        self._encrypted = encrypted
        self._answering: dict[str, trio.CancelScope] = {}

    def answer(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers of `/livez` for the other servers; none of an owner that the log store does not answer.

        One that reaches the log store takes over from it, also if it has not begun to serve.

        Args:
            headers: Those of the request. Another server may say that it has claimed the store, or follows this one.
        """
        if headers.get(FOLLOWS_HEADER) == str(self.log.epoch):
            self.log.isolation.followed()
        if (notice := Notice.decode(headers.get(CLAIMED_HEADER, ""))) is not None:
            self.log.accept_notice(notice.epoch, notice.owner, notice.nonce)
        if self.log.epoch is not None and self.log.trouble is not None:
            return {}
        return {
            SERVER_HEADER: self.server_id,
            EPOCH_HEADER: str(self.log.epoch or 0),
            LSN_HEADER: str(self.log.next_lsn - 1),
        }

    @property
    def owner(self) -> str:
        """``HOST:PORT`` of the server that owns the store; empty if it is not known, or if it is this one."""
        claim = self.log.claim
        return "" if claim.server_id == self.server_id else claim.addresses.tcp

    def why_waiting(self) -> str:
        """Why this server serves no clients, for `/readyz`; empty if it only recovers its own data."""
        reasons = [f"the server at {self.owner} owns the store; this one follows it"] if self.owner else []
        if (trouble := self.log.trouble) is not None:
            # What the store said is not for all who can reach this page.
            reasons.append(f"{trouble.summary}; the log of this server says why")
        return "; ".join(reasons)

    @property
    def follows(self) -> bool:
        """Whether another server owns the store."""
        return bool(self.owner)

    async def inform_former_owner(self) -> None:
        """Inform the server from which this one took the store over: the log store may not answer that one."""
        epoch, former = self.log.epoch, self.log.former
        if epoch is None or not former.nonce:
            return
        notice = Notice(epoch, self.log.claim.addresses.tcp, former.nonce)
        for failures in range(_MOST_NOTICES):
            if self.log.epoch != epoch or await send_notice(
                former.addresses.http, notice, encrypted=former.addresses.encrypted
            ):
                return
            await trio.sleep(_NOTICES.delay_s(failures))

    async def keep_asking(self) -> None:
        """Ask the owner whether it is alive, also while the log store does not answer this server.

        Then it does not come to the end of the log, where it decides about a takeover. The owner is to know that this
        server has not taken the store over.
        """
        while True:
            await trio.sleep(_LOOK_AT_ASKED_S)
            was_asked = trio.current_time() - self._owner.asked_at < _ASKED_AFTER_S
            if not was_asked and self.log.epoch is None and self.follows:
                await self._owner.ask(self.log.claim)

    @property
    def is_cut_off(self) -> bool:
        """Whether no request to the log store succeeds, or no file of the history can be fetched."""
        return self._trouble is not None

    @property
    def _trouble(self) -> Trouble | None:
        return self.log.trouble or self.log.trouble_with_files

    async def log_troubles(self) -> None:
        """Write into the log when no request to the log store succeeds, and why, and when they do again.

        The same for an owner that does not reach the other servers either.
        """
        logged = ""
        is_isolated = False
        while True:
            await trio.sleep(_LOOK_AT_HEALTH_S)
            isolation = None if self.log.epoch is None else self.log.isolation.error
            if isolation is not None and not is_isolated:
                log.warning("appends in memory mode are refused", reason=str(isolation))
            elif isolation is None and is_isolated:
                log.info("this server is not isolated any more")
            is_isolated = isolation is not None
            trouble = self._trouble
            if trouble is not None and trouble.code != logged:
                log.warning("the log store is in trouble", store=self._place, reason=str(trouble))
            elif trouble is None and logged:
                log.info("the log store answers again", store=self._place)
            logged = "" if trouble is None else trouble.code

    def lag(self) -> int | None:
        """How many entries of the log the owner has and this server has not, as far as the owner has told.

        None if this server follows no other one, or if the owner has told nothing yet.
        """
        newest = self._owner.lsn_in(self.log.claim.epoch)
        return None if not self.owner or newest is None else max(0, newest - (self.log.next_lsn - 1))

    def begin_answers(self, nursery: trio.Nursery, sockets: Mapping[str, socket.socket]) -> None:
        """Tell clients who owns the store, on the listeners where that is not done yet, until `end_answers`."""
        for name in ("tcp", "websocket"):
            if name in sockets and name not in self._answering:
                self._answering[name] = trio.CancelScope()
                nursery.start_soon(self._answer, sockets[name], name, self._answering[name])

    async def _answer(self, sock: socket.socket, name: str, answering: trio.CancelScope) -> None:
        with answering:
            await answer_clients(sock, lambda: self.owner, self._encrypted or name == "websocket")

    def end_answers(self, *names: str) -> None:
        """This server accepts clients itself from now on.

        Args:
            names: On these listeners; none for all.
        """
        for name in names or tuple(self._answering):
            if (answering := self._answering.pop(name, None)) is not None:
                answering.cancel()


@asynccontextmanager
async def joined(
    config: ServerConfig, path: str, sockets: Mapping[str, socket.socket]
) -> AsyncIterator[Membership | None]:
    """Join the store that the settings name, for the length of the block; None for a server on its own.

    Args:
        config: The settings.
        path: The data directory. If it belongs to another store, or to a server on its own, nothing is written into
            the log store.
        sockets: The listening sockets by name.

    Raises:
        ConfigurationError: The address of the store cannot be used.
        DataDirectoryError: The data directory does not belong to the store.
        LogStoreError: The store cannot be reached, does not do what a log needs, or belongs to another program.
    """
    places = config.cluster.store
    if not places:
        yield None
        return
    if len(places) > 2:
        raise ConfigurationError(
            f"cluster.store has {len(places)} addresses; it takes one for the log, and one for the files"
        )
    for name in ("tcp", "http"):
        if name not in sockets:
            raise ConfigurationError(
                f"listen.{name} is off: a server of a cluster needs it, since the others reach it there"
            )
    address, store = await _opened(places[0])
    try:
        await _check_directory(path, address, store)
        beside = None
        if places[1:]:
            beside = files_address, files = await _opened(places[1])
            for name, value in (("slots", files_address.slots), ("interval", files_address.interval_s)):
                if value is not None:
                    files.close()
                    raise ConfigurationError(
                        f"cluster.store: {files_address.text} is the place of the files, which have no slots: write "
                        f"{name}= into the address of the log"
                    )
            # Closed together from now on.
            log_store, store = store, DividedLogStore(store, address.root, files, files_address.root)
            await _check_places(address, log_store, files_address, files)
        server_id = secrets.token_bytes(ID_BYTES)
        limiter = trio.CapacityLimiter(1)
        holds = Holds.LOG if places[1:] else Holds.EVERYTHING
        identity = await _identified(store, address.root, secrets.token_bytes(ID_BYTES), server_id, holds)
        if beside is not None:
            await _join_files(*beside, identity.store_id, server_id)
        member = Member(address.root, identity.store_id, server_id)
        log.info(
            "joined the store",
            store=address.text,
            store_id=identity.store_id.hex(),
            is_new=identity.is_new,
            newest_epoch=await drive(store, newest_claim(address.root), limiter),
        )
        encrypted = bool(config.tls.certificate_file)
        addresses = Addresses(
            config.cluster.advertise or reached_at(sockets["tcp"]),
            _http_address(config, sockets),
            encrypted,
        )
        owner = SeenOwner()
        watch = OwnerWatch(server_id.hex(), addresses.tcp, owner.ask)
        most_bytes = config.limits.max_frame_bytes + _ENTRIES_BYTES
        interval_s = address.interval_s or 0.0
        shared = SharedLog(store, member, addresses, watch, most_bytes, address.slots or 1, interval_s)
        async with shared.transferring(places), listed(store, member, addresses):
            yield Membership(server_id.hex(), shared, owner, " ".join(places), encrypted=encrypted)
    finally:
        store.close()


async def _opened(text: str) -> tuple[StoreAddress, LogStore]:
    try:
        address = StoreAddress.parse(text)
        return address, await trio.to_thread.run_sync(address.open, abandon_on_cancel=True)
    except InvalidRequestError as error:
        raise ConfigurationError(f"cluster.store: {error}") from error


async def _identified(store: LogStore, root: str, store_id: bytes, server_id: bytes, holds: Holds) -> Identity:
    """Check that a place does what is needed, and find out which store lies there, or make it."""
    nonce = secrets.token_bytes(ID_BYTES)
    try:
        await probe(store, root, secrets.token_hex(8))
        return await drive(store, identify(root, store_id, server_id, nonce, holds), trio.CapacityLimiter(1))
    except MAY_PASS as error:
        raise _unusable(error) from error


async def _check_directory(path: str, address: StoreAddress, store: LogStore) -> None:
    """Refuse a data directory that does not belong to the store, before anything is written into it.

    Raises:
        DataDirectoryError: It does not.
    """
    of_directory = await trio.to_thread.run_sync(store_of, OsFileSystem(), path)
    if of_directory is None:
        return
    try:
        found = await drive(store, read_identity(address.root), trio.CapacityLimiter(1))
    except MAY_PASS as error:
        raise _unusable(error) from error
    require_store(path, of_directory, None if found is None else found.store_id.hex())


def _unusable(error: LogStoreError) -> LogStoreError:
    return type(error)(f"the log store cannot be used: {error}; {error.way_out}")


async def _check_places(address: StoreAddress, log_store: LogStore, beside: StoreAddress, files: LogStore) -> None:
    """Refuse a place of files that does not belong to a log, before anything is written into either.

    Raises:
        ForeignStoreError: It does not belong to the log.
    """
    limiter = trio.CapacityLimiter(1)
    # In the reverse of the order in which another first server may be making them now: what is read later is there if
    # what was read before it is.
    is_in_use = bool(await drive(log_store, newest_claim(address.root), limiter))
    of_files = await drive(files, read_identity(beside.root), limiter)
    of_log = await drive(log_store, read_identity(address.root), limiter)
    if of_files is not None and of_log is None:
        raise ForeignStoreError(
            f"{beside.text} has {told_of(of_files)} already, of the store {of_files.store_id.hex()}, but "
            f"{address.text} has no store yet: give another place for the files"
        )
    if beside.place == address.place:
        raise ForeignStoreError(f"{address.text} is given for the log and for the files: give two places, or one")
    if of_files is None and of_log is not None and is_in_use:
        raise ForeignStoreError(
            f"{beside.text} has no files of the store {of_log.store_id.hex()}, which has been in use: give the place "
            "that its servers were started with (--objects)"
        )


async def _join_files(address: StoreAddress, files: LogStore, store_id: bytes, server_id: bytes) -> None:
    """Check that the place of the files does what is needed, and belongs to the store; make it if it is new.

    Raises:
        ForeignStoreError: It has the files of another store.
    """
    found = await _identified(files, address.root, store_id, server_id, Holds.FILES)
    if found.store_id != store_id:
        raise ForeignStoreError(
            f"{address.text} has the files of the store {found.store_id.hex()}, not of {store_id.hex()}"
        )


def _http_address(config: ServerConfig, sockets: Mapping[str, socket.socket]) -> str:
    """Where others reach the HTTP listener: at the advertised host, if there is one."""
    reached = reached_at(sockets["http"])
    if not config.cluster.advertise:
        return reached
    host, _, _ = config.cluster.advertise.rpartition(":")
    return f"{host}:{reached.rpartition(':')[2]}"
