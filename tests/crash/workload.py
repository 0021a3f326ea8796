"""A program that writes to a server until its standard input is closed, and notes every acknowledged append.

The server is killed and started again meanwhile: the client reconnects and sends again what was not acknowledged. Every
value begins with a number that rises within its shard.

    python -m tests.crash.workload HOST:PORT LOG SEED
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import TextIO

import trio
import trio.testing

from journal.client import Client, SessionTimes, open_client
from shards.back_off import BackOff
from shards.errors import StorageError
from shards.model import Mode, ShardConfig
from tests.crash.acknowledged import SHARDS, note

SENT_AHEAD = 8


async def write(client: Client, shard: str, log: TextIO, rng: random.Random) -> None:
    """Append batches of some values, several ahead of their acknowledgements."""
    number = 0
    ahead = trio.Semaphore(SENT_AHEAD)
    async with trio.open_nursery() as nursery:

        async def send(values: list[bytes]) -> None:
            appended = await client.append(shard, values)
            if appended.base_offset >= 0:
                note(log, shard, appended.base_offset, appended.level, values)
            ahead.release()

        while True:
            await ahead.acquire()
            count = rng.randrange(1, 20)
            values = [b"%012d " % (number + i) + rng.randbytes(rng.randrange(200)) for i in range(count)]
            number += count
            nursery.start_soon(send, values)
            # Each append is handed over before the next one is made: their order is the order of their numbers.
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(rng.random() * 0.002)


async def switch(client: Client, shard: str, rng: random.Random) -> None:
    """Switch a shard's mode to and fro."""
    while True:
        await trio.sleep(rng.random() * 0.2)
        try:
            await client.set_mode(shard, rng.choice([Mode.FILE, Mode.MEMORY]))
        except StorageError:
            # The server is down: whether it switched does not matter.
            continue


async def run(address: str, log_path: Path, seed: int) -> None:
    """Work until standard input ends."""
    rng = random.Random(seed)
    with log_path.open("a") as log:
        async with open_client(
            address,
            name="workload",
            join_appends=False,
            backoff=BackOff(0.05, 0.2),
            times=SessionTimes(first_within_s=math.inf),
        ) as client:
            for shard in SHARDS:
                mode = Mode.MEMORY if shard == "killed/memory" else Mode.FILE
                await client.create_shard(shard, ShardConfig(mode=mode), exist_ok=True)
            sys.stdout.write("working\n")
            sys.stdout.flush()
            async with trio.open_nursery() as nursery:
                for number, shard in enumerate(SHARDS):
                    nursery.start_soon(write, client, shard, log, random.Random(seed * 100 + number))
                nursery.start_soon(switch, client, "killed/switched", rng)
                await trio.to_thread.run_sync(sys.stdin.read)
                nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(run, sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
