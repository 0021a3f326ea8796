"""The body of a slot: commit groups as they lie in a journal file, with a group header that has no salt.

The slot's own header has the checksum of its body, the lsns and the epoch. So damage of a slot is never a torn write:
nothing of it is cut off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from journal.engine.wal.entry import GROUP_HEADER_SIZE, Entry, decode_group_header, encode_group_header
from journal.engine.wal.recovery import read_entries
from journal.logstore.errors import LogDamagedError
from shards.segments.chunks import Readable

_SALT: Final = 0


@attrs.frozen(slots=True)
class SlotGroup:
    """A commit group of a slot.

    Attributes:
        data: The bytes of its entries.
        entries: The entries, which are views of these bytes.
        first_lsn: No entry of it has a lower lsn.
        next_lsn: All entries of it have lower lsns.
    """

    data: memoryview
    entries: list[Entry]
    first_lsn: int
    next_lsn: int


def encode_group(entries: Sequence[Readable], size_bytes: int, first_lsn: int, next_lsn: int) -> bytes:
    """The body of a slot with one group, whose entries have ``size_bytes`` in all."""
    return b"".join((encode_group_header(_SALT, size_bytes, first_lsn, next_lsn), *entries))


def decode_groups(key: str, body: bytes) -> Iterator[SlotGroup]:
    """The groups of a slot, in order.

    Args:
        key: Key of the slot, for errors.
        body: Its body, whose checksum was compared.

    Raises:
        LogDamagedError: It does not consist of whole and valid groups.
        FormatVersionError: A newer program wrote an entry.
    """
    data = memoryview(body)
    position = 0
    while position < len(data):
        header = decode_group_header(data, position, _SALT)
        start = position + GROUP_HEADER_SIZE
        if header is None or start + header.size_bytes > len(data) or header.next_lsn < header.first_lsn:
            raise LogDamagedError(f"{key} at byte {position} of its body: there is no whole commit group")
        end = start + header.size_bytes
        entries, damages, bad_header = read_entries(key, data, start, end, header.first_lsn, header.next_lsn)
        if bad_header is not None:
            raise LogDamagedError(f"{key} at byte {bad_header.position} of its body: {bad_header.problem}")
        if damages:
            raise LogDamagedError(f"{key} at byte {damages[0].position} of its body: {damages[0].problem}")
        yield SlotGroup(data[start:end], entries, header.first_lsn, header.next_lsn)
        position = end
