"""A program that reads everything back from a server and compares it with what a workload noted as acknowledged.

    python -m tests.crash.checker HOST:PORT LOG

Prints one line for each broken promise and a summary; exit status 1 if there was any. The workload may go on meanwhile.
"""

from __future__ import annotations

import sys
from pathlib import Path

import attrs
import trio

from journal.client import Client, open_client
from shards.format.batch import read_records
from shards.format.record import Gap
from shards.model import AckLevel
from tests.crash.acknowledged import SHARDS, Acknowledged, digest, read


@attrs.define
class Found:
    """What a shard holds: fingerprints by offset, and the lost ranges."""

    digests: dict[int, str] = attrs.Factory(dict)
    gaps: list[Gap] = attrs.Factory(list)
    problems: list[str] = attrs.Factory(list)


async def read_back(client: Client, shard: str) -> Found:
    """Read a shard from its start to its end; order, holes and repetitions are judged on the way."""
    found = Found()
    info = await client.describe_shard(shard)
    offset, newest = info.start_offset, -1
    if offset:
        found.problems.append(f"{shard}: begins at offset {offset}, though it was not trimmed")
    while offset < info.next_offset:
        reply = await client.fetch(shard, offset, max_bytes=1 << 20)
        expected = offset
        for item in read_records(reply.batches, start_offset=offset):
            first = item.first_offset if isinstance(item, Gap) else item.offset
            if first != expected:
                found.problems.append(f"{shard}: offset {first} comes where {expected} should")
            if isinstance(item, Gap):
                found.gaps.append(item)
                expected = item.next_offset
                continue
            number = int(item.value[:12])
            if number <= newest:
                found.problems.append(f"{shard}: record {number} at offset {item.offset} comes after record {newest}")
            newest = max(newest, number)
            found.digests[item.offset] = digest(item.value)
            expected = item.offset + 1
        if reply.next_offset <= offset:
            found.problems.append(f"{shard}: a read at offset {offset} of {info.next_offset} gives nothing")
            break
        offset = reply.next_offset
    return found


def compare(acknowledged: list[Acknowledged], shard: str, found: Found) -> list[str]:
    """What is missing or different."""
    problems = list(found.problems)
    if not SHARDS[shard] and found.gaps:
        problems.append(f"{shard}: always in file mode, but has gaps {found.gaps[:3]}")
    for append in acknowledged:
        for offset, wanted in enumerate(append.digests, append.offset):
            here = found.digests.get(offset)
            if here is None and append.level is AckLevel.DURABLE:
                problems.append(f"{shard}: offset {offset} was acknowledged as durable and is missing")
            elif here is not None and here != wanted:
                problems.append(f"{shard}: offset {offset} was acknowledged with another content")
    return problems


async def run(address: str, log_path: Path) -> int:
    """Check all shards; give the exit status."""
    acknowledged = list(read(log_path))
    problems: list[str] = []
    records = 0
    async with open_client(address, name="checker") as client:
        for shard in SHARDS:
            found = await read_back(client, shard)
            records += len(found.digests)
            problems += compare([append for append in acknowledged if append.shard == shard], shard, found)
    for problem in problems[:50]:
        sys.stdout.write(f"{problem}\n")
    sys.stdout.write(f"{len(acknowledged)} appends acknowledged, {records} records found, {len(problems)} problems\n")
    return 1 if problems or not acknowledged else 0


if __name__ == "__main__":
    sys.exit(trio.run(run, sys.argv[1], Path(sys.argv[2])))
