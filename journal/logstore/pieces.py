"""Files of a store: immutable contents that are too large for one object, in pieces, which are objects. Pure.

A file is stored before the entry of the log that names it. So a server that has read the entry finds the file, until
no segment is in it any more and the owner deletes it (`delete_unneeded`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from journal.logstore.errors import LogDamagedError
from journal.logstore.keys import FileName, file_folder, piece_key, piece_of
from journal.logstore.objects import Kind, LogObject, check_object, encode_object
from journal.logstore.ownership import Member, check_owned
from journal.logstore.settling import settle_create, settle_delete, settle_get, settle_list
from journal.logstore.steps import Steps

PIECE_BYTES: Final = 4 << 20
"""So large that a file has few pieces, and so small that each request is short, on slow networks and in a database."""

_ATTEMPTS: Final = 10


@attrs.frozen(slots=True)
class Piece:
    """A piece of a file.

    Attributes:
        content: Its bytes; every piece but the last has `PIECE_BYTES`.
        count: How many pieces the file has, at least one.
    """

    content: bytes
    count: int


def piece_count(size_bytes: int) -> int:
    """How many pieces a file of this size has."""
    return max(1, -(-size_bytes // PIECE_BYTES))


def put_piece(member: Member, nonce: bytes, name: FileName, number: int, piece: Piece) -> Steps[None]:
    """Store a piece of a file.

    Args:
        member: The node, and the store.
        nonce: 16 random bytes, the same for each piece of the file.
        name: The file. No other file ever had this name.
        number: Which piece, from 0.
        piece: The piece.

    Raises:
        LogDamagedError: There is another piece in its place.
        LogStoreError: The store did not take it within some seconds.
    """
    key = piece_key(member.root, name, number)
    value = LogObject(
        Kind.PIECE,
        member.store_id,
        member.node_id,
        nonce,
        epoch=name.day,
        slot=number,
        first_lsn=name.file_id,
        next_lsn=piece.count,
        body=piece.content,
    )
    settlement = yield from settle_create(key, encode_object(value), _ATTEMPTS)
    if not settlement.is_ours:
        raise LogDamagedError(f"{key} exists already, with other bytes")


def get_piece(member: Member, name: FileName, number: int) -> Steps[Piece | None]:
    """A piece of a file; `None` if there is none.

    Raises:
        ForeignStoreError, LogDamagedError: What is there is not this piece.
        LogStoreError: The store did not give it within some seconds.
    """
    key = piece_key(member.root, name, number)
    data = yield from settle_get(key, _ATTEMPTS)
    if data is None:
        return None
    found = check_object(key, data, member.store_id, name.day, number, Kind.PIECE)
    if found.first_lsn != name.file_id:
        raise LogDamagedError(f"{key} holds a piece of the file {found.first_lsn:016x}")
    return Piece(found.body, found.next_lsn)


def list_files(root: str) -> Steps[dict[FileName, int]]:
    """The files that are stored, and how many pieces there are of each."""
    found: dict[FileName, int] = {}
    for key in (yield from settle_list(file_folder(root))):
        piece = piece_of(key)
        if piece is not None:
            found[piece[0]] = found.get(piece[0], 0) + 1
    return found


def delete_unneeded(member: Member, epoch: int, is_needed: Callable[[FileName], bool]) -> Steps[int]:
    """Delete the files that nothing refers to.

    A process that is suspended in it and deposed meanwhile does no harm, whenever it wakes up. It lists before it
    makes sure that it is the owner, so nothing that a later owner stored is in the list.

    Args:
        member: The owner.
        epoch: Its epoch.
        is_needed: Returns whether something refers to a file, or its being stored is under way. It is asked right
            before a file is deleted.

    Returns:
        The number of files that were deleted.

    Raises:
        StoreDeposedError: Another node owns the store.
    """
    keys = yield from settle_list(file_folder(member.root))
    yield from check_owned(member.root, epoch)
    deleted: set[FileName] = set()
    for key in keys:
        found = piece_of(key)
        if found is None or is_needed(found[0]):
            continue
        yield from settle_delete(key)
        deleted.add(found[0])
    return len(deleted)
