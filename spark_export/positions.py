"""How far a stream has read: a position in every shard, as the JSON that Spark keeps in the query's checkpoint.

::

    {"version": 1, "shards": {"plant/1": "17:4200", "plant/2": "18:0"}, "after": "plant/1"}
    {"version": 1, "packed": "eNqrVirOSCxKKVayUqhWKs..."}

A shard's position is its id and the next offset to read; the id tells a shard from a later one of the same name. A
shard that is not named has not given anything yet and is read from offset 0. Of many shards the same object is packed:
zlib, then base64. Spark keeps a hundred positions and more of a query, so their size counts. Pure values.
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

VERSION: Final = 1
PACKED_FROM: Final = 200
"""From so many shards on a position is packed."""


@attrs.frozen(slots=True)
class Position:
    """How far one shard was read.

    Attributes:
        shard_id: The shard's id, which no later shard of its name has.
        next_offset: The next offset to read.
    """

    shard_id: int
    next_offset: int


@attrs.frozen(slots=True)
class StreamPosition:
    """How far all shards were read.

    Attributes:
        shards: By name.
        after: With fewer records to a micro-batch than shards: the shard that got the last one, so that the next
            micro-batch begins behind it. Otherwise empty.
    """

    shards: Mapping[str, Position] = attrs.field(factory=dict, hash=False)
    after: str = ""

    def encode(self) -> dict[str, Any]:
        """The object that Spark makes JSON of."""
        members: dict[str, Any] = {
            "shards": {name: f"{one.shard_id}:{one.next_offset}" for name, one in sorted(self.shards.items())}
        }
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
        if version != VERSION:
            raise UnreadableError(
                f"the checkpoint holds a position of version {version!r}, this program reads version {VERSION}: go on "
                f"with the program that wrote it, or begin with a new checkpoint ({_shown(found)})"
            )
        try:
            members = json.loads(zlib.decompress(base64.b64decode(found["packed"]))) if "packed" in found else found
            shards = {name: _position(text) for name, text in members["shards"].items()}
            return cls(shards, str(members.get("after", "")))
        except (KeyError, ValueError, TypeError, AttributeError, binascii.Error, zlib.error) as error:
            raise UnreadableError(
                f"the checkpoint holds no position of the data source 'journal' but {_shown(found)}: {error!r}; "
                f"begin with a new checkpoint"
            ) from error


def records_between(start: StreamPosition, end: StreamPosition) -> int:
    """How many offsets lie between two positions; gaps count as well."""
    count = 0
    for name, there in end.shards.items():
        begun = start.shards.get(name)
        first = begun.next_offset if begun is not None and begun.shard_id == there.shard_id else 0
        count += max(0, there.next_offset - first)
    return count


def _position(text: str) -> Position:
    shard_id, _, next_offset = text.partition(":")
    return Position(int(shard_id), int(next_offset))


def _shown(found: Mapping[str, Any]) -> str:
    text = json.dumps(found)
    return text if len(text) <= 120 else f"{text[:120]}..."
