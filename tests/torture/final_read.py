"""A program that reads everything that a server holds into a history, at the end of a workload.

python -m tests.torture.final_read HOST:PORT HISTORY NAME
"""

from __future__ import annotations

import math
import random
import sys
import time
from pathlib import Path

import trio

from journal.client import SessionTimes, open_client
from shards.back_off import BackOff
from tests.torture.history import GroupPosition, Recorder
from tests.torture.worker import CURSORS, FILES, GROUPS, KEYS, SHARDS, Session


async def read_all(address: str, path: Path, who: str) -> None:
    """Read all shards from their beginning to their end, all state, all cursors and the positions of groups.

    Raises:
        StorageError: Something cannot be read.
    """
    with path.open("a") as file:
        recorder = Recorder(who, file)
        async with open_client(
            address, name=who, backoff=BackOff(0.05, 0.2), times=SessionTimes(first_within_s=math.inf)
        ) as client:
            session = Session(who, client, recorder, random.Random(0))
            for shard in SHARDS:
                info = await client.describe_shard(shard)
                offset: int | None = info.start_offset
                while offset is not None:
                    offset = await session.read_once(shard, offset, last=True)
            for key in KEYS:
                await session.get_state(key)
            for shard, name in CURSORS:
                await session.get_cursor(shard, name)
            for group in GROUPS:
                for shard in FILES:
                    began_ns = time.monotonic_ns()
                    cursor = await client.get_cursor(shard, f"group/{group}")
                    offset = 0 if cursor is None else cursor.offset
                    recorder.note(GroupPosition, began_ns, group=group, shard=shard, offset=offset)


if __name__ == "__main__":
    trio.run(read_all, sys.argv[1], Path(sys.argv[2]), sys.argv[3])
