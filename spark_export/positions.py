"""How far a stream has read: a position in every shard, stored by Spark as JSON in the query's checkpoint.

::

    {"version": 2, "shards": {"plant/1": "17:4200", "plant/2": "18:0"}, "after": "plant/1"}
    {"version": 2, "shards": {"plant/1": "17:70:42"}, "missing": {"plant/3": "19:12::88"}, "restores": [[88, 1099511]]}
    {"version": 2, "packed": "eNqrVirOSCxKKVayUqhWKs..."}

A shard's position is its id and the next offset to read; the id distinguishes a shard from a later one of the same
name. Two optional parts follow: where the micro-batch that ends there begins in that shard (if a restore replaced
records that were read before), and up to which lsn a shard that could not be compared after a restore is known to be
the same. ``restores`` are the restores from backups that the store knew: their lsns before and after. A shard that is
not named has not been read yet, and is read from offset 0. For many shards the same object is packed: zlib, then
base64. Spark keeps a hundred positions and more of a query, so their size matters. Version 1 had only ``shards``, with
two numbers each, and ``after``. Pure values.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from typing import Any, Final, Self

import attrs

from shards.history import HistoryGap
from spark_export.errors import UnreadableError
from spark_export.read_history import ReadHistory, decode_restores, encode_restores

VERSION: Final = 2
PACKED_FROM: Final = 200
"""From this many shards on a position is packed."""
RECORDS_LEFT: Final = "records_left"
"""Key in the progress of a query, next to the newest position: records that its micro-batch leaves up to there."""


@attrs.frozen(slots=True)
class Position:
    """How far one shard was read.

    Attributes:
        shard_id: The shard's id, which no later shard of its name has.
        next_offset: The next offset to read.
        first_offset: Where the micro-batch that ends here begins in this shard; None: at the end of the one before.
        common_lsn: See `ReadHistory.common_lsns`; None for a shard whose records were compared.
    """

    shard_id: int
    next_offset: int
    first_offset: int | None = None
    common_lsn: int | None = None


@attrs.frozen(slots=True)
class StreamPosition:
    """How far all shards were read.

    Attributes:
        shards: By name.
        after: If a micro-batch has fewer records than there are shards: the shard that was served last, so that the
            next micro-batch begins after it. Otherwise empty.
        missing: By name: shards that do not exist any more, a loss that was accepted. A shard that comes back is read
            from there on.
        restores: Restores that the store knew.
    """

    shards: Mapping[str, Position] = attrs.field(factory=dict, hash=False)
    after: str = ""
    missing: Mapping[str, Position] = attrs.field(factory=dict, hash=False)
    restores: tuple[HistoryGap, ...] = ()

    @property
    def read_history(self) -> ReadHistory:
        """The history of the store to which the records read so far belong."""
        places = {**self.missing, **self.shards}
        lsns = {name: one.common_lsn for name, one in places.items() if one.common_lsn is not None}
        return ReadHistory(self.restores, lsns)

    def of(self, shard: str, shard_id: int) -> Position | None:
        """The position in a shard; None if it has not been read yet."""
        found = self.shards.get(shard) or self.missing.get(shard)
        return found if found is not None and found.shard_id == shard_id else None

    def first_offset(self, shard: str, end: Position) -> int:
        """Where the records between this position and a later one of a shard begin."""
        place = self.of(shard, end.shard_id)
        if place is None:
            return 0
        return place.next_offset if end.first_offset is None else end.first_offset

    def encode(self) -> dict[str, Any]:
        """The object that Spark stores as JSON."""
        members: dict[str, Any] = {"shards": _texts(self.shards)}
        if self.missing:
            members["missing"] = _texts(self.missing)
        if self.after:
            members["after"] = self.after
        if self.restores:
            members["restores"] = encode_restores(self.restores)
        if len(self.shards) < PACKED_FROM:
            return {"version": VERSION, **members}
        text = json.dumps(members, separators=(",", ":"), ensure_ascii=False)
        return {"version": VERSION, "packed": base64.b64encode(zlib.compress(text.encode())).decode()}

    @classmethod
    def decode(cls, found: Mapping[str, Any]) -> Self:
        """Decode the result of `encode`.

        Raises:
            UnreadableError: It has another version, or is not a position.
        """
        version = found.get("version")
        if version not in range(1, 1 + VERSION):
            raise UnreadableError(
                f"the checkpoint holds a position of version {version!r}, this program reads versions up to {VERSION}: "
                f"continue with the program that wrote it, or begin with a new checkpoint ({_shown(found)})"
            )
        try:
            members = json.loads(zlib.decompress(base64.b64decode(found["packed"]))) if "packed" in found else found
            shards, missing = _positions(members["shards"]), _positions(members.get("missing", {}))
            return cls(shards, str(members.get("after", "")), missing, decode_restores(members.get("restores", ())))
        except (KeyError, ValueError, TypeError, AttributeError, binascii.Error, zlib.error) as error:
            raise UnreadableError(
                f"the checkpoint holds no position of the data source 'journal' but {_shown(found)}: {error!r}; "
                f"begin with a new checkpoint"
            ) from error


def _texts(positions: Mapping[str, Position]) -> dict[str, str]:
    return {name: _text(one) for name, one in sorted(positions.items())}


def _text(position: Position) -> str:
    numbers = ("" if number is None else str(number) for number in attrs.astuple(position))
    return ":".join(numbers).rstrip(":")


def _positions(texts: Mapping[str, str]) -> dict[str, Position]:
    return {name: _position(text) for name, text in texts.items()}


def _position(text: str) -> Position:
    shard_id, next_offset, *others = text.split(":")
    if len(others) > 2:
        raise ValueError(f"{text!r} is not SHARD_ID:NEXT_OFFSET[:FIRST_OFFSET[:COMMON_LSN]]")
    return Position(int(shard_id), int(next_offset), *(int(number) if number else None for number in others))


def _shown(found: Mapping[str, Any]) -> str:
    text = json.dumps(found)
    return text if len(text) <= 120 else f"{text[:120]}..."
