"""How far a stream has read: a position in every shard, as the JSON that Spark keeps in the query's checkpoint.

::

    {"version": 2, "shards": {"plant/1": "17:4200", "plant/2": "18:0:70"}, "after": "plant/1"}
    {"version": 2, "shards": {"plant/1": "17:4200"}, "missing": {"plant/3": "19:12"}}
    {"version": 2, "packed": "eNqrVirOSCxKKVayUqhWKs..."}

A shard's position is its id and the next offset to read; the id tells a shard from a later one of the same name. If its
node was restored from a backup, the offset where it ended then stands behind them. A shard that is not named has not
given anything yet and is read from offset 0. Of many shards the same object is packed: zlib, then base64. Spark keeps a
hundred positions and more of a query, so their size counts. Version 1 had neither ``missing`` nor third numbers. Pure
values.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from typing import Any, Final, Self

import attrs

from spark_export.errors import UnreadableError

VERSION: Final = 2
PACKED_FROM: Final = 200
"""From so many shards on a position is packed."""


@attrs.frozen(slots=True)
class Position:
    """How far one shard was read.

    Attributes:
        shard_id: The shard's id, which no later shard of its name has.
        next_offset: The next offset to read.
        restored_offset: Where the shard ended when its node was restored from a backup the last time; None if that did
            not happen.
    """

    shard_id: int
    next_offset: int
    restored_offset: int | None = None


@attrs.frozen(slots=True)
class StreamPosition:
    """How far all shards were read.

    Attributes:
        shards: By name.
        after: With fewer records to a micro-batch than shards: the shard that got the last one, so that the next
            micro-batch begins behind it. Otherwise empty.
        missing: By name: shards that are not there any more, which was passed over. One that comes back is read from
            there on.
    """

    shards: Mapping[str, Position] = attrs.field(factory=dict, hash=False)
    after: str = ""
    missing: Mapping[str, Position] = attrs.field(factory=dict, hash=False)

    def of(self, shard: str, shard_id: int) -> Position | None:
        """The position in a shard; None if that one has not given anything yet."""
        found = self.shards.get(shard) or self.missing.get(shard)
        return found if found is not None and found.shard_id == shard_id else None

    def first_offset(self, shard: str, end: Position) -> int:
        """Where what lies between this position and a later one of a shard begins."""
        place = self.of(shard, end.shard_id)
        if place is None:
            return 0
        if end.restored_offset is None or end.restored_offset == place.restored_offset:
            return place.next_offset
        # From there on the restored node gave the offsets to other records.
        return min(place.next_offset, end.restored_offset)

    def encode(self) -> dict[str, Any]:
        """The object that Spark makes JSON of."""
        members: dict[str, Any] = {"shards": _texts(self.shards)}
        if self.missing:
            members["missing"] = _texts(self.missing)
        if self.after:
            members["after"] = self.after
        if len(self.shards) < PACKED_FROM:
            return {"version": VERSION, **members}
        text = json.dumps(members, separators=(",", ":"), ensure_ascii=False)
        return {"version": VERSION, "packed": base64.b64encode(zlib.compress(text.encode())).decode()}

    @classmethod
    def decode(cls, found: Mapping[str, Any]) -> Self:
        """Read what `encode` gave.

        Raises:
            UnreadableError: It is of another version, or no position at all.
        """
        version = found.get("version")
        if version not in range(1, 1 + VERSION):
            raise UnreadableError(
                f"the checkpoint holds a position of version {version!r}, this program reads versions up to {VERSION}: "
                f"go on with the program that wrote it, or begin with a new checkpoint ({_shown(found)})"
            )
        try:
            members = json.loads(zlib.decompress(base64.b64decode(found["packed"]))) if "packed" in found else found
            shards, missing = _positions(members["shards"]), _positions(members.get("missing", {}))
            return cls(shards, str(members.get("after", "")), missing)
        except (KeyError, ValueError, TypeError, AttributeError, binascii.Error, zlib.error) as error:
            raise UnreadableError(
                f"the checkpoint holds no position of the data source 'journal' but {_shown(found)}: {error!r}; "
                f"begin with a new checkpoint"
            ) from error


def records_between(start: StreamPosition, end: StreamPosition) -> int:
    """How many offsets lie between two positions; gaps count as well."""
    count = 0
    for name, there in end.shards.items():
        count += max(0, there.next_offset - start.first_offset(name, there))
    return count


def _texts(positions: Mapping[str, Position]) -> dict[str, str]:
    return {
        name: ":".join(str(number) for number in attrs.astuple(one) if number is not None)
        for name, one in sorted(positions.items())
    }


def _positions(texts: Mapping[str, str]) -> dict[str, Position]:
    return {name: Position(*map(int, _numbers(text))) for name, text in texts.items()}


def _numbers(text: str) -> list[str]:
    numbers = text.split(":")
    if len(numbers) not in (2, 3):
        raise ValueError(f"{text!r} is not SHARD_ID:NEXT_OFFSET")
    return numbers


def _shown(found: Mapping[str, Any]) -> str:
    text = json.dumps(found)
    return text if len(text) <= 120 else f"{text[:120]}..."
