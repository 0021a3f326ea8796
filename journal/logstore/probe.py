"""Finding out, before anything is stored, whether a store does what a log needs, and to whom it belongs."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import attrs
import trio

from journal.logstore.driver import drive
from journal.logstore.errors import ForeignStoreError, LogStoreError, UnfitStoreError
from journal.logstore.keys import identity_key
from journal.logstore.objects import Kind, LogObject, decode_object, encode_object
from journal.logstore.settling import settle_create, settle_delete, settle_get, settle_list
from journal.logstore.steps import Steps
from journal.logstore.store import LogStore

RIVALS: Final = 32
ATTEMPTS: Final = 10


@attrs.frozen(slots=True)
class Identity:
    """What lies under the keys of a store.

    Attributes:
        store_id: The store, 16 bytes.
        is_new: Whether it was made by this call.
    """

    store_id: bytes
    is_new: bool


async def probe(store: LogStore, root: str, token: str) -> None:
    """Check that of rival creates one wins, that an object stays as it is, and that reads and listings are up to date.

    What it creates below ``<root>/probe/<token>`` is deleted afterwards. It takes some 40 requests, in 32 threads. A
    cancellation takes effect when those that are under way have ended; then nothing is deleted.

    Args:
        store: The store.
        root: What the keys of the store begin with.
        token: A name that was not used before.

    Raises:
        UnfitStoreError: The store does not do that; the message says what it did.
        LogStoreError: The store cannot be used at present, or not with these credentials.
    """
    folder = f"{root}/probe/{token}"
    raced, other = f"{folder}/1", f"{folder}/2"
    limiter = trio.CapacityLimiter(RIVALS)
    try:
        winners = await _race(store, raced, token, limiter)
        if len(winners) != 1:
            raise UnfitStoreError(
                f"{len(winners)} of {RIVALS} rivals were told that they created one object, not 1: the store does not "
                "support conditional writes (create if absent), or ignores the condition"
            )
        await drive(store, _check_kept(raced, winners[0]), limiter)
        await drive(store, _check_fresh(raced, other), limiter)
    except LogStoreError:
        # It says what is wrong, not what a deletion then comes to.
        with suppress(LogStoreError):
            await _delete(store, (raced, other), limiter)
        raise
    await _delete(store, (raced, other), limiter)


async def _delete(store: LogStore, keys: Sequence[str], limiter: trio.CapacityLimiter) -> None:
    for key in keys:
        await drive(store, settle_delete(key, ATTEMPTS), limiter)


async def _race(store: LogStore, key: str, token: str, limiter: trio.CapacityLimiter) -> list[bytes]:
    """Let many create one object at the same time; what those wrote who were told that they created it.

    Raises:
        LogStoreError: A create could not be settled.
    """
    winners: list[bytes] = []
    failures: list[LogStoreError] = []

    async def create(data: bytes) -> None:
        try:
            if (await drive(store, settle_create(key, data, ATTEMPTS), limiter)).is_ours:
                winners.append(data)
        except LogStoreError as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for number in range(RIVALS):
            nursery.start_soon(create, b"%d of %s" % (number, token.encode()))
    if failures:
        raise failures[0]
    return winners


def _check_kept(key: str, winner: bytes) -> Steps[None]:
    again = yield from settle_create(key, b"later", ATTEMPTS)
    if again.is_ours or again.found != winner:
        raise UnfitStoreError(
            f"a second create replaced {key}: it holds {again.found[:40]!r}, not {winner[:40]!r}, which won the race "
            "for it; the store ignores the condition of a conditional write"
        )


def _check_fresh(raced: str, other: str) -> Steps[None]:
    data = b"listed"
    yield from settle_create(other, data, ATTEMPTS)
    if (yield from settle_get(other, ATTEMPTS)) != data:
        raise UnfitStoreError(f"{other} was not found right after it was created: the store's reads are not up to date")
    for after, expected in ((raced, [other]), (raced[:-1], [raced, other])):
        found = sorted((yield from settle_list(after, ATTEMPTS)))
        if found != expected:
            raise UnfitStoreError(
                f"a listing after {after} right after the creates has {found}, not {expected}: the store's listings "
                "are not up to date or not complete"
            )


class Holds(enum.Enum):
    """What of a store lies in a place: the body of its identity."""

    EVERYTHING = b""
    LOG = b"log"
    FILES = b"files"


_TOLD: Final = {
    Holds.EVERYTHING: "a whole store",
    Holds.LOG: "the log of a store whose files are elsewhere (--objects)",
    Holds.FILES: "the files of a store whose log is elsewhere (--store)",
}


def read_identity(root: str) -> Steps[LogObject | None]:
    """The identity of the store that lies there; None if there is none yet.

    Raises:
        ForeignStoreError: Something else lies there.
    """
    key = identity_key(root)
    data = yield from settle_get(key, ATTEMPTS)
    return None if data is None else _identity(key, data)


def _identity(key: str, data: bytes) -> LogObject:
    found = decode_object(key, data)
    if found.kind is not Kind.IDENTITY:
        raise ForeignStoreError(f"{key} holds a {found.kind.name.lower()}, not the identity of a store")
    return found


def told_of(identity: LogObject) -> str:
    """What of a store lies in a place with this identity."""
    return next((_TOLD[each] for each in Holds if each.value == identity.body), "something that is not known here")


def identify(
    root: str, store_id: bytes, node_id: bytes, nonce: bytes, holds: Holds = Holds.EVERYTHING
) -> Steps[Identity]:
    """Find out which store lies there, or make one.

    Args:
        root: What the keys of the store begin with.
        store_id: The id of the new store if there is none: 16 random bytes.
        node_id: The node that makes it.
        nonce: 16 random bytes.
        holds: What of the store lies there.

    Raises:
        ForeignStoreError: Something else lies there.
    """
    key = identity_key(root)
    mine = encode_object(LogObject(Kind.IDENTITY, store_id, node_id, nonce, body=holds.value))
    settlement = yield from settle_create(key, mine, ATTEMPTS)
    found = _identity(key, settlement.found)
    if found.body != holds.value:
        raise ForeignStoreError(f"{key} is the identity of {told_of(found)}; this server is started for {_TOLD[holds]}")
    return Identity(found.store_id, settlement.is_ours)
