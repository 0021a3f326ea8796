"""How a node becomes the owner of a store, and notices that it no longer is.

A claim is the create of the next epoch; one of several rivals gets it. Then every earlier epoch that may have a
writer is closed by a fence: an object in its first free slot, in the way of whatever its writer creates next. The
writer may sleep for any time, so neither claims nor fences are ever deleted.

An epoch ends at the first fence that is met when its slots are read in order from the newest checkpoint. Objects
after that fence are not part of the log: a writer with several writes under way may have created them before it met
the fence, and a fence may have been placed ahead of a writer that was faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from journal.logstore.checkpoints import Checkpoint, checkpoint_after
from journal.logstore.errors import LogDamagedError, StoreDeposedError
from journal.logstore.keys import (
    BEGINNING,
    Position,
    before_slot,
    claim_key,
    number_of,
    slot_key,
)
from journal.logstore.objects import Kind, LogObject, check_object, encode_object
from journal.logstore.settling import settle_create, settle_get, settle_list
from journal.logstore.steps import Steps

MOST_UNDER_WAY: Final = 64
"""How many writes an owner may have under way."""

_LOSSES_BEFORE_AHEAD: Final = 2
"""Number of times that a live writer may take the slot of a fence before a fence is placed ahead of it."""

_CLAIM_ATTEMPTS: Final = 6


@attrs.frozen(slots=True)
class Member:
    """A node of a store.

    Attributes:
        root: What the keys of the store begin with.
        store_id: The store, 16 bytes.
        node_id: The node, 16 bytes.
    """

    root: str
    store_id: bytes
    node_id: bytes


@attrs.frozen(slots=True)
class Ownership:
    """An epoch that a node owns.

    Attributes:
        epoch: The epoch; its slots begin at 0.
        checkpoint: From where the log is to be read, up to the end of the epoch before this one; `None` is its
            beginning.
    """

    epoch: int
    checkpoint: Checkpoint | None


def newest_claim(root: str, known_epoch: int = 0) -> Steps[int]:
    """The newest claimed epoch, or the known one if none is newer. Epochs are claimed without gaps, from 1."""
    keys = yield from settle_list(claim_key(root, known_epoch))
    return max((number for key in keys if (number := number_of(key)) is not None), default=known_epoch)


def check_owned(root: str, epoch: int) -> Steps[None]:
    """Check that no higher epoch is claimed.

    Raises:
        StoreDeposedError: One is.
    """
    newest = yield from newest_claim(root, epoch)
    if newest > epoch:
        raise StoreDeposedError(epoch, newest)


def read_claim(member: Member, epoch: int) -> Steps[LogObject | None]:
    """The claim of an epoch; `None` if no node has claimed it.

    Raises:
        ForeignStoreError, LogDamagedError: What is there is not a claim of this store.
    """
    key = claim_key(member.root, epoch)
    data = yield from settle_get(key)
    return None if data is None else check_object(key, data, member.store_id, epoch, 0, Kind.CLAIM)


def own(
    member: Member,
    nonce: bytes,
    known_epoch: int = 0,
    about: bytes = b"",
    *,
    gives_way: bool = False,
    window_of: Callable[[bytes], int] = lambda _: MOST_UNDER_WAY,
) -> Steps[Ownership]:
    """Become the owner of the store; its present owner, if there is one, loses it.

    When it returns, the writers of all earlier epochs are stopped, and after the last of them was, no higher epoch had
    been claimed yet. So everything that was acknowledged up to then is before its own epoch. The owner reads the log up
    to there (`journal.logstore.reading`), then it may write.

    Args:
        member: The node, and the store that it takes over.
        nonce: 16 random bytes that were not used before.
        known_epoch: An epoch that is known to be claimed; listing begins after it.
        about: What the claim says of the node to others, such as its address.
        gives_way: Claim only the epoch after the known one. So of several nodes that decide at the same time to take
            over from the same owner, one does.
        window_of: How many writes an owner has under way at most, by what its claim says of it (`about`). A slot that
            is missing before so many is damage.

    Raises:
        LogDamagedError: A slot is missing, and later ones are there. No fence takes its place.
        StoreDeposedError: Another node has claimed a higher epoch in the meantime, or the epoch after the known one.
    """
    epoch = (yield from newest_claim(member.root, known_epoch)) + 1
    if gives_way and epoch > known_epoch + 1:
        raise StoreDeposedError(known_epoch, epoch - 1)
    while not (yield from _claim(member, epoch, nonce, about)):
        if gives_way:
            raise StoreDeposedError(known_epoch, epoch)
        epoch += 1
    checkpoint = yield from checkpoint_after(member.root, member.store_id, None)
    while True:
        yield from _close_earlier(member, epoch, nonce, checkpoint.position if checkpoint else BEGINNING, window_of)
        newer = yield from _newer_checkpoint(member, checkpoint)
        if newer is None:
            break
        # Slots before the newer checkpoint may have been deleted before they were listed, or between listing and
        # create. A fence in the place of a deleted slot does not stop the writer, which is past it.
        checkpoint = newer
    yield from check_owned(member.root, epoch)
    return Ownership(epoch, checkpoint)


def _newer_checkpoint(member: Member, checkpoint: Checkpoint | None) -> Steps[Checkpoint | None]:
    return (yield from checkpoint_after(member.root, member.store_id, checkpoint.position if checkpoint else None))


def _claim(member: Member, epoch: int, nonce: bytes, about: bytes) -> Steps[bool]:
    data = encode_object(LogObject(Kind.CLAIM, member.store_id, member.node_id, nonce, epoch, body=about))
    # Few attempts: whether the owner is lost has to be decided anew meanwhile.
    settlement = yield from settle_create(claim_key(member.root, epoch), data, _CLAIM_ATTEMPTS)
    return settlement.is_ours


def _close_earlier(
    member: Member, by_epoch: int, nonce: bytes, start: Position, window_of: Callable[[bytes], int]
) -> Steps[None]:
    """Close every epoch before this one that may have a writer, the newest first."""
    for epoch in range(by_epoch - 1, start.epoch - 1, -1):
        first = start if epoch == start.epoch else Position(epoch, 0)
        claim = yield from read_claim(member, epoch)
        # A claim that is missing was deleted by hand: then no other object may be missing.
        window = 1 if claim is None else window_of(claim.body)
        yield from close_epoch(member, by_epoch, nonce, first, window)
        if epoch > start.epoch and (yield from _has_begun(member, epoch)):
            # Its owner had closed all epochs before it when it wrote its first slot.
            return


def _has_begun(member: Member, epoch: int) -> Steps[bool]:
    """Whether the owner of a closed epoch has written a slot."""
    found = yield from _read(member, Position(epoch, 0))
    return found is not None and found.kind is Kind.SLOT


def close_epoch(
    member: Member, by_epoch: int, nonce: bytes, first: Position, window: int = MOST_UNDER_WAY
) -> Steps[None]:
    """Place a fence in the first free slot of an epoch, unless there is one.

    Args:
        member: The node.
        by_epoch: The epoch that this node has claimed.
        nonce: 16 random bytes of this claim.
        first: The first slot of the epoch that can be in the log: 0, or the position of the newest checkpoint.
        window: How many writes its owner has under way at most.

    Raises:
        LogDamagedError: A slot is missing, and later ones are there.
    """
    losses = 0
    tail = first
    while True:
        tail = yield from _first_free(member, tail, window)
        if tail > first:
            last = yield from _read(member, attrs.evolve(tail, slot=tail.slot - 1))
            if last is not None and last.kind is Kind.FENCE:
                return
        if losses >= _LOSSES_BEFORE_AHEAD:
            # The writer takes each free slot before us. It cannot pass a fence ahead of it, so the loop ends there at
            # the latest.
            ahead = attrs.evolve(tail, slot=tail.slot + 2**losses)
            yield from _fence(member, by_epoch, nonce, ahead)
        if (yield from _fence(member, by_epoch, nonce, tail)):
            return
        losses += 1


def _first_free(member: Member, start: Position, window: int) -> Steps[Position]:
    """The first slot from this one on that does not exist.

    It takes one listing, so that a live writer is not chased slot by slot; two if later slots are there.

    Raises:
        LogDamagedError: The slot was written, as later ones are there, and is missing.
    """
    free, later = yield from _listed_free(member, start, window)
    if later:
        # A slot that is created during a listing may be missing in it. All before those in this one are in the next.
        again, _ = yield from _listed_free(member, start, window)
        if again == free:
            yield from _refuse_hole(member, free, later)
        free = again
    return free


def _listed_free(member: Member, start: Position, window: int) -> Steps[tuple[Position, list[int]]]:
    """The first free slot, and the later ones that no writer can have created without it."""
    keys = yield from settle_list(before_slot(member.root, start))
    taken = {number for key in keys if (number := number_of(key)) is not None}
    slot = start.slot
    while slot in taken:
        slot += 1
    return attrs.evolve(start, slot=slot), sorted(number for number in taken if number >= slot + window)


def _refuse_hole(member: Member, free: Position, later: list[int]) -> Steps[None]:
    """Refuse a log without this slot, unless it was collected, or what is later are fences ahead of a writer."""
    if (yield from checkpoint_after(member.root, member.store_id, free)) is not None:
        return
    for number in later:
        found = yield from _read(member, attrs.evolve(free, slot=number))
        if found is not None and found.kind is Kind.SLOT:
            present = slot_key(member.root, attrs.evolve(free, slot=number))
            raise LogDamagedError(
                f"{slot_key(member.root, free)} is missing, but {present} is there: restore the missing objects of the "
                "log store"
            )


def _fence(member: Member, by_epoch: int, nonce: bytes, position: Position) -> Steps[bool]:
    """Create a fence. Returns whether there is a fence now, of this node or of another one."""
    key = slot_key(member.root, position)
    fence = LogObject(
        Kind.FENCE,
        member.store_id,
        member.node_id,
        nonce,
        position.epoch,
        position.slot,
        body=by_epoch.to_bytes(8, "little"),
    )
    settlement = yield from settle_create(key, encode_object(fence))
    if settlement.is_ours:
        return True
    found = check_object(key, settlement.found, member.store_id, position.epoch, position.slot, Kind.SLOT, Kind.FENCE)
    return found.kind is Kind.FENCE


def _read(member: Member, position: Position) -> Steps[LogObject | None]:
    key = slot_key(member.root, position)
    data = yield from settle_get(key)
    if data is None:
        return None
    return check_object(key, data, member.store_id, position.epoch, position.slot, Kind.SLOT, Kind.FENCE)
