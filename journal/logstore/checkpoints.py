"""Checkpoints of a store: what is before a position of its log, as one immutable object.

The body is the manifest of the checkpoint, which this package does not look into. Whatever is before the position of
the newest checkpoint need not be in the log any more (`journal.logstore.collection`).
"""

from __future__ import annotations

import attrs

from journal.logstore.keys import Position, checkpoint_folder, checkpoint_key, position_of
from journal.logstore.objects import Kind, LogObject, check_object, encode_object
from journal.logstore.settling import settle_create, settle_get, settle_list
from journal.logstore.steps import Steps


@attrs.frozen(slots=True)
class Checkpoint:
    """A checkpoint.

    Attributes:
        position: Where reading goes on: the first slot that is not in the checkpoint.
        next_lsn: The lsn of the first entry that is not in the checkpoint.
        manifest: What is in the checkpoint.
    """

    position: Position
    next_lsn: int
    manifest: bytes


def list_checkpoints(root: str) -> Steps[list[Position]]:
    """The positions of all checkpoints, the oldest first."""
    keys = yield from settle_list(checkpoint_folder(root))
    return sorted(position for key in keys if (position := position_of(key)) is not None)


def checkpoint_after(root: str, store_id: bytes, position: Position | None) -> Steps[Checkpoint | None]:
    """The newest checkpoint, if its position is after this one; with `None`, the newest one, if there is one."""
    while True:
        positions = yield from list_checkpoints(root)
        if not positions or (position is not None and positions[-1] <= position):
            return None
        found = yield from read_checkpoint(root, store_id, positions[-1])
        if found is not None:
            return found
        # It was collected after the listing, which is done only when there are two newer ones: list again.


def read_checkpoint(root: str, store_id: bytes, position: Position) -> Steps[Checkpoint | None]:
    """The checkpoint of a position; `None` if there is none.

    Raises:
        ForeignStoreError, LogDamagedError: What is there is not a checkpoint of this store.
    """
    key = checkpoint_key(root, position)
    data = yield from settle_get(key)
    if data is None:
        return None
    found = check_object(key, data, store_id, position.epoch, position.slot, Kind.CHECKPOINT)
    return Checkpoint(position, found.next_lsn, found.body)


def create_checkpoint(root: str, store_id: bytes, node_id: bytes, nonce: bytes, checkpoint: Checkpoint) -> Steps[bool]:
    """Store a checkpoint. Everything before its position must be known to be in the log.

    Returns:
        Whether it was stored. Otherwise there is one for the position already, which says the same.
    """
    position = checkpoint.position
    data = encode_object(
        LogObject(
            Kind.CHECKPOINT,
            store_id,
            node_id,
            nonce,
            epoch=position.epoch,
            slot=position.slot,
            next_lsn=checkpoint.next_lsn,
            body=checkpoint.manifest,
        )
    )
    settlement = yield from settle_create(checkpoint_key(root, position), data)
    return settlement.is_ours
