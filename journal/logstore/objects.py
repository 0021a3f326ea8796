"""The bytes of the objects of a store: identity, claim, slot, fence, checkpoint, piece of a file, server. Pure.

All have the same header::

     0       8         10     11     12          16         32        48      64      72     80          88
    +-------+---------+------+------+-----------+----------+---------+-------+-------+------+-----------+
    | magic | version | kind | zero | body_size | store_id | node_id | nonce | epoch | slot | first_lsn |
    +-------+---------+------+------+-----------+----------+---------+-------+-------+------+-----------+
     88         96         100          104
    +----------+----------+------------+------+
    | next_lsn | body_crc | header_crc | body |
    +----------+----------+------------+------+

``header_crc`` covers bytes 0 to 99. The nonce is random, so that no two nodes ever write the same bytes: a node that
finds its own bytes under a key knows that its create was applied.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

import attrs
from crc32c import crc32c

from journal.logstore.errors import ForeignStoreError, LogDamagedError

MAGIC: Final = b"JRNLSLOT"
VERSION: Final = 1
ID_BYTES: Final = 16
_HEADER: Final = struct.Struct("<8sHBBI16s16s16sQQQQI")
_CRC: Final = struct.Struct("<I")
HEADER_BYTES: Final = _HEADER.size + _CRC.size


class Kind(enum.IntEnum):
    """What an object is."""

    IDENTITY = 1
    CLAIM = 2
    SLOT = 3
    FENCE = 4
    CHECKPOINT = 5
    PIECE = 6
    SERVER = 7


@attrs.frozen(slots=True)
class LogObject:
    """One object. Fields that a kind does not use are zero.

    Attributes:
        store_id: The store that it belongs to, 16 bytes.
        node_id: The node that wrote it, 16 bytes.
        nonce: 16 random bytes.
        epoch: Of a claim, the epoch that is claimed; of a slot or fence, the epoch in which it lies; of a checkpoint,
            the epoch of its position; of a piece, the day of its file.
        slot: Of a slot or fence, its number; of a checkpoint, the slot of its position; of a piece, its number.
        first_lsn: Of a slot, the lsn of its first entry; of a piece, the id of its file.
        next_lsn: Of a slot or a checkpoint, the lsn of the first entry after it; of a piece, how many its file has.
        body: Of a slot, its commit groups; of a checkpoint, its manifest; of a fence, the epoch that made it; of a
            piece, its bytes of the file; of a claim or a server, where the server is reached.
    """

    kind: Kind
    store_id: bytes
    node_id: bytes
    nonce: bytes
    epoch: int = 0
    slot: int = 0
    first_lsn: int = 0
    next_lsn: int = 0
    body: bytes = b""


def encode_object(value: LogObject) -> bytes:
    """The bytes of an object."""
    assert len(value.store_id) == len(value.node_id) == len(value.nonce) == ID_BYTES
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        value.kind,
        0,
        len(value.body),
        value.store_id,
        value.node_id,
        value.nonce,
        value.epoch,
        value.slot,
        value.first_lsn,
        value.next_lsn,
        crc32c(value.body),
    )
    return b"".join((header, _CRC.pack(crc32c(header)), value.body))


def decode_object(key: str, data: bytes) -> LogObject:
    """The object that lies under a key.

    Raises:
        ForeignStoreError: The bytes do not begin as an object of a store does, or have a newer version.
        LogDamagedError: They begin so and are damaged.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise ForeignStoreError(f"{key} is no object of a store: it begins with {data[: len(MAGIC)]!r}, not {MAGIC!r}")
    if len(data) < HEADER_BYTES:
        raise LogDamagedError(f"{key} has {len(data)} bytes; a header alone has {HEADER_BYTES}")
    (expected,) = _CRC.unpack_from(data, _HEADER.size)
    found = crc32c(memoryview(data)[: _HEADER.size])
    if found != expected:
        raise LogDamagedError(f"{key}: the header's checksum is {found:#010x}, not {expected:#010x}")
    _, version, kind, _, size, store_id, node_id, nonce, epoch, slot, first_lsn, next_lsn, body_crc = (
        _HEADER.unpack_from(data)
    )
    if version != VERSION:
        raise ForeignStoreError(f"{key} has version {version} of the format; this program reads version {VERSION}")
    body = data[HEADER_BYTES:]
    if len(body) != size:
        raise LogDamagedError(f"{key}: the body has {len(body)} bytes, not {size}")
    found = crc32c(body)
    if found != body_crc:
        raise LogDamagedError(f"{key}: the body's checksum is {found:#010x}, not {body_crc:#010x}")
    try:
        known = Kind(kind)
    except ValueError:
        raise LogDamagedError(f"{key} is of kind {kind}; known are 1 to {max(Kind)}") from None
    return LogObject(known, store_id, node_id, nonce, epoch, slot, first_lsn, next_lsn, body)


def check_object(key: str, data: bytes, store_id: bytes, epoch: int, slot: int, *kinds: Kind) -> LogObject:
    """The object under a key, if it is of this store, of one of these kinds, and lies where it says that it lies.

    Raises:
        ForeignStoreError: It belongs to another store, or to none.
        LogDamagedError: It is damaged or lies under a key that is not its own.
    """
    value = decode_object(key, data)
    if value.store_id != store_id:
        raise ForeignStoreError(f"{key} belongs to the store {value.store_id.hex()}, not to {store_id.hex()}")
    if value.kind not in kinds or (value.epoch, value.slot) != (epoch, slot):
        wanted = " or ".join(kind.name.lower() for kind in kinds)
        raise LogDamagedError(
            f"{key} holds a {value.kind.name.lower()} of epoch {value.epoch}, slot {value.slot}, "
            f"not a {wanted} of epoch {epoch}, slot {slot}"
        )
    return value
