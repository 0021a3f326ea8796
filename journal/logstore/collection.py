"""Deleting what the last two checkpoints make superfluous: older checkpoints, and slots before the older of the two.

Claims and fences are never deleted. A process may be suspended for any time, and then try to create its next slot. The
fence in that slot makes the create fail. Without it the create would succeed, and the process would acknowledge records
that are not part of the log.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from journal.logstore.checkpoints import list_checkpoints
from journal.logstore.errors import StoreDeposedError
from journal.logstore.keys import FIRST_EPOCH, Position, checkpoint_key, epoch_folder, number_of, slot_key
from journal.logstore.objects import Kind, check_object
from journal.logstore.ownership import Member
from journal.logstore.settling import settle_delete, settle_get, settle_list
from journal.logstore.steps import Steps

KEPT_CHECKPOINTS: Final = 2


def collect(
    member: Member, epoch: int, from_epoch: int = FIRST_EPOCH, broken: Container[Position] = frozenset()
) -> Steps[int]:
    """Delete what is superfluous.

    Args:
        member: The owner.
        epoch: Its epoch.
        from_epoch: Epochs before this one have nothing left to delete.
        broken: Positions of checkpoints that name something which does not exist. A process can make one that was
            suspended and has lost the store. They do not count as one of the last two.

    Returns:
        The epoch from which the next collection has to look.

    Raises:
        StoreDeposedError: There is a checkpoint of a higher epoch.
    """
    checkpoints = yield from list_checkpoints(member.root)
    if checkpoints and checkpoints[-1].epoch > epoch:
        raise StoreDeposedError(epoch, checkpoints[-1].epoch)
    whole = [position for position in checkpoints if position not in broken]
    if len(whole) < KEPT_CHECKPOINTS:
        return from_epoch
    boundary = whole[-KEPT_CHECKPOINTS]
    for position in checkpoints:
        if position < boundary:
            yield from settle_delete(checkpoint_key(member.root, position))
    for closed in range(from_epoch, boundary.epoch):
        yield from _collect_closed(member, closed)
    yield from _collect_boundary(member, epoch, boundary)
    return boundary.epoch


def _collect_closed(member: Member, epoch: int) -> Steps[None]:
    """Delete the slots of an epoch that has ended, but not its fences."""
    for slot in (yield from _slots(member, epoch)):
        position = Position(epoch, slot)
        if (yield from _is_slot(member, position)):
            yield from settle_delete(slot_key(member.root, position))


def _collect_boundary(member: Member, epoch: int, boundary: Position) -> Steps[None]:
    """Delete the slots before a checkpoint in the epoch of the checkpoint."""
    for slot in (yield from _slots(member, boundary.epoch)):
        position = Position(boundary.epoch, slot)
        # In its own epoch, an owner has settled every slot before a checkpoint: none of them is a fence. In the epoch
        # of another node it reads each object, so that no fence is deleted.
        if position < boundary and (boundary.epoch == epoch or (yield from _is_slot(member, position))):
            yield from settle_delete(slot_key(member.root, position))


def _slots(member: Member, epoch: int) -> Steps[list[int]]:
    keys = yield from settle_list(epoch_folder(member.root, epoch))
    return sorted(slot for key in keys if (slot := number_of(key)) is not None)


def _is_slot(member: Member, position: Position) -> Steps[bool]:
    key = slot_key(member.root, position)
    data = yield from settle_get(key)
    if data is None:
        return False
    found = check_object(key, data, member.store_id, position.epoch, position.slot, Kind.SLOT, Kind.FENCE)
    return found.kind is Kind.SLOT
