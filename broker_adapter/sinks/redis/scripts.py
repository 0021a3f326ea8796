"""What the server runs for us: Lua that looks at position and epoch and adds rows, in one step that none sees half of.

Beside the stream there is a hash for each queue, with the fields ``position``, ``epoch``, ``bridge`` and ``turn``. The
last one counts how often the position was asked for. Who writes names the turn it was told, so what a connection that
was given up had still in its buffers changes nothing any more once the position was asked for on a new one.
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
    """A script and the name under which a server that has seen it runs it again."""

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
"""Add rows and move the position.

Keys: the stream, the hash. Arguments: epoch, turn, first offset, next offset, about how many entries to keep (0 for
all), and a MessagePack array of fields and values for each row, of which there is one at least. Reply: 1; or 0 and what
the hash has.

A server does not undo what a script has done when a command of it is refused. So no command may be refused behind the
first row: the hash is written before, with what it has, and rows are added by one command, which trims as well. Whether
the user may use a command, whether there is memory and whether the server takes changes is the same for a whole script.
"""


def position_key(stream: str, queue_id: str) -> str:
    """The hash of a queue, in the same slot of a Redis Cluster as its stream."""
    tag = re.search(r"\{([^{}]+)\}", stream)
    return f"journal:bridge:{{{tag[1] if tag else stream}}}:{queue_id}"


def pack_rows(rows: Sequence[Row], columns: Sequence[str]) -> list[bytes]:
    """Rows as `WRITE` takes them: texts and bytes as they are, what is None left out, all others as JSON.

    Raises:
        UnwritableRowError: See there.
    """
    packed = []
    for index, row in enumerate(rows):
        try:
            fields = [part for name in columns if (value := row[name]) is not None for part in (name, _written(value))]
            # An entry has at least one field.
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
    # As a string: the server's decoder knows no others, and does not ask whether it is text.
    return msgspec.Raw(_STRING_HEADER.pack(0xDB, len(octets)) + octets)
