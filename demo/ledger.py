"""What a broker swears to: a line in a file for every record it published, had acknowledged, or received.

The checker believes the ledgers and nothing else. A line is a JSON array whose first item says what it is. Lines are
with the operating system when `Ledger.write` returns, so they outlive the broker (not the machine; nor need they).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

_DIGEST_BYTES = 8


class Published(msgspec.Struct, frozen=True, array_like=True, tag="published"):
    """A record is about to be appended: from now on it may be stored.

    ``sequence`` counts the topic's records from 0, ``metric`` is what the record says of its source's metric.
    """

    shard: str
    sequence: int
    digest: str
    size_bytes: int
    metric: float | None = None


class Acknowledged(msgspec.Struct, frozen=True, array_like=True, tag="acknowledged"):
    """The store has said that it has the record, at this offset (-1: it did not say) and at this `AckLevel`.

    ``latency_us`` is the time from the append to its acknowledgement, which was seen at ``at_us``.
    """

    shard: str
    sequence: int
    digest: str
    offset: int
    level: int
    latency_us: int
    at_us: int


class Received(msgspec.Struct, frozen=True, array_like=True, tag="received"):
    """A record of another broker came in, ``delay_us`` after the server had stamped it."""

    shard: str
    offset: int
    digest: str
    delay_us: int


class ReceivedGap(msgspec.Struct, frozen=True, array_like=True, tag="gap"):
    """A subscription was told that these offsets are lost."""

    shard: str
    first_offset: int
    next_offset: int


Line = Published | Acknowledged | Received | ReceivedGap


def digest_of(value: bytes) -> str:
    """Short name of a payload; two records of a run never share one by chance."""
    return blake2b(value, digest_size=_DIGEST_BYTES).hexdigest()


class Ledger:
    """The open ledger of one broker."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._encoder = msgspec.json.Encoder()

    def write(self, lines: Iterable[Line]) -> None:
        """Append lines and hand them to the operating system."""
        data = b"".join(self._encoder.encode(line) + b"\n" for line in lines)
        written = self._file.write(data)
        if written != len(data):
            raise OSError(f"{self._file.name}: {written} of {len(data)} bytes written")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()


def read_ledger(path: Path) -> Iterator[Line]:
    """The lines of a ledger, in the order they were written."""
    decoder = msgspec.json.Decoder(Line)
    with path.open("rb") as file:
        for line in file:
            yield decoder.decode(line)
