"""Lua scripts that run on the server: they check position and epoch, and add rows, atomically.

In addition to the stream there is a hash for each queue, with the fields ``position``, ``epoch``, ``bridge`` and
``turn``. ``turn`` counts how often the position was read. A writer sends the value of ``turn`` that it got with the
position. So commands that were still buffered on an abandoned connection change nothing any more, once the position was
read over a new one.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence
from typing import Final

import attrs
import msgspec

from broker_adapter.sinks.batch import Row, Value
from broker_adapter.sinks.errors import UnwritableRowError
from broker_adapter.sinks.json_form import encode_value


@attrs.frozen(slots=True)
class Script:
    """A script, and its hash, with which a server that has run it before can run it again."""

    text: str
    sha: str = attrs.field(init=False)

    @sha.default
    def _sha(self) -> str:
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


TAKE_OVER: Final = Script("""
local known = redis.call('HMGET', KEYS[1], 'epoch', 'position')
if known[1] and tonumber(known[1]) > tonumber(ARGV[1]) then
    return {0, known[1], false}
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'bridge', ARGV[2])
return {1, redis.call('HINCRBY', KEYS[1], 'turn', 1), known[2]}
""")
"""Raise the epoch. Key: the hash. Arguments: epoch, bridge. Reply: 1, turn, position; or 0, the later epoch."""

WRITE: Final = Script("""
local known = redis.call('HMGET', KEYS[2], 'epoch', 'turn', 'position')
if known[1] ~= ARGV[1] or known[2] ~= ARGV[2] or (known[3] and tonumber(known[3]) > tonumber(ARGV[3])) then
    return {0, known[1], known[2], known[3]}
end
redis.call('HSET', KEYS[2], 'turn', ARGV[2])
for index = 6, #ARGV - 1 do
    redis.call('XADD', KEYS[1], '*', unpack(cmsgpack.unpack(ARGV[index])))
end
if ARGV[5] == '0' then
    redis.call('XADD', KEYS[1], '*', unpack(cmsgpack.unpack(ARGV[#ARGV])))
else
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[5], '*', unpack(cmsgpack.unpack(ARGV[#ARGV])))
end
redis.call('HSET', KEYS[2], 'position', ARGV[4])
return {1}
""")
"""Add rows and advance the position.

Keys: the stream, the hash. Arguments: epoch, turn, first offset, next offset, approximate number of entries to keep (0
for all), and a MessagePack array of fields and values for each row, at least one. Reply: 1; or 0 and the fields of the
hash.

A server does not roll a script back when one of its commands is refused. So no command may be refused after the first
row: the hash is written before, with its present value, and rows are added by one command, which also trims.
Permissions of the user, memory and read-only state of the server are the same during a whole script.
"""


def position_key(stream: str, queue_id: str) -> str:
    """Key of the hash of a queue, in the same slot of a Redis Cluster as its stream."""
    tag = re.search(r"\{([^{}]+)\}", stream)
    return f"journal:bridge:{{{tag[1] if tag else stream}}}:{queue_id}"


def pack_rows(rows: Sequence[Row], columns: Sequence[str]) -> list[bytes]:
    """Encode rows for `WRITE`: texts and bytes unchanged, all other values as JSON; None is left out.

    Raises:
        UnwritableRowError: A row cannot be encoded.
    """
    packed = []
    for index, row in enumerate(rows):
        try:
            fields = [part for name in columns if (value := row[name]) is not None for part in (name, _written(value))]
            # An entry must have at least one field.
            packed.append(_pack(fields or [columns[0], ""]))
        except UnicodeEncodeError as error:
            raise UnwritableRowError(index, f"half a character in a text: {error.reason}") from None
        except ValueError as error:
            raise UnwritableRowError(index, str(error)) from None
    return packed


_STRING_HEADER: Final = struct.Struct(">BI")
_pack: Final = msgspec.msgpack.Encoder().encode


def _written(value: Value) -> str | msgspec.Raw:
    if isinstance(value, str):
        return value
    if value.__class__ is int:
        return str(value)
    octets = value if isinstance(value, bytes) else encode_value(value)
    # As a string: the server's decoder supports no other type, and does not check for UTF-8.
    return msgspec.Raw(_STRING_HEADER.pack(0xDB, len(octets)) + octets)
