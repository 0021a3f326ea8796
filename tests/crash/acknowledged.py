"""The file in which a workload notes what a server acknowledged: one line for each append, flushed before it goes on.

It is all that the workload and its checker have in common.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import attrs

from shards.model import AckLevel

SHARDS = {"killed/file/0": False, "killed/file/1": False, "killed/switched": True, "killed/memory": True}
"""Shards of the workload, and whether they are ever in memory mode."""


@attrs.frozen
class Acknowledged:
    """One acknowledged append: the digests of its records from ``offset`` on."""

    shard: str
    offset: int
    level: AckLevel
    digests: tuple[str, ...]


def digest(value: bytes) -> str:
    """Short fingerprint of a value."""
    return hashlib.blake2b(value, digest_size=8).hexdigest()


def note(log: TextIO, shard: str, offset: int, level: AckLevel, values: Sequence[bytes]) -> None:
    """Write one line; it outlives this process, though not the machine."""
    log.write(f"{shard} {offset} {int(level)} {','.join(map(digest, values))}\n")
    log.flush()


def read(path: Path) -> Iterator[Acknowledged]:
    """All whole lines so far."""
    text = path.read_text() if path.exists() else ""
    for line in text[: text.rfind("\n") + 1].splitlines():
        shard, offset, level, digests = line.split(" ")
        yield Acknowledged(shard, int(offset), AckLevel(int(level)), tuple(digests.split(",")))
