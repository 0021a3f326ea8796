"""A program of clients that subscribe at followers, by shard and by filter, until its standard input is closed.

    python -m tests.torture.follower_readers ADDRESS HISTORY SEED NAME

It writes down what was delivered. Half of the clients stay for the whole time, through all takeovers. The others are
replaced all the time: a client stays at the owner once it is there, and a new one looks for a follower. Shards that are
ever in memory mode are left out, since a follower does not have all of their records.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
import trio

from journal.client import SessionTimes, open_client
from shards.back_off import BackOff
from shards.position import Start
from tests.torture.history import Recorder
from tests.torture.worker import CONDITIONAL, FILES, TOGETHER, Session

TARGETS: Final[tuple[Mapping[str, str], ...]] = (
    *({"shard": shard} for shard in (*FILES, CONDITIONAL, *TOGETHER)),
    {"topic_filter": "t/file/+"},
    {"topic_filter": "t/+/0"},
    {"topic_filter": "t/together/#"},
)
KIND: Final = "at-follower"
"""In the names of the subscriptions."""


async def read(address: str, recorder: Recorder, target: Mapping[str, str], rng: random.Random, lasts_s: float) -> None:
    """Subscribe with a client, and with another one after some time, until cancelled."""
    for number in itertools.count():
        name = f"{recorder.who}.{number}"
        # The first one gets everything; later ones begin anywhere.
        start = Start.earliest() if not number else rng.choice((Start.latest(), Start.lsn(rng.randrange(1, 4000))))
        with trio.move_on_after(lasts_s * rng.uniform(0.5, 1.5)):
            async with open_client(
                address, name=name, backoff=BackOff(0.05, 0.2), times=SessionTimes(first_within_s=math.inf)
            ) as client:
                session = Session(name, client, attrs.evolve(recorder, who=name), rng)
                await session.keep(lambda session=session, start=start: follow(session, target, start))  # type: ignore[misc]


async def follow(session: Session, target: Mapping[str, str], start: Start) -> None:
    """Write down what one subscription delivers, until the server ends it.

    Raises:
        StorageError: It has.
    """
    assignment = session.new_assignment(KIND)
    async with session.client.subscribe(**target, start=start, credit_bytes=64 << 10) as subscription:
        session.note_failures(assignment, subscription)
        while True:
            began_ns = time.monotonic_ns()
            delivery = await anext(subscription)
            session.note_poll(assignment, began_ns, delivery)


async def run(address: str, path: Path, seed: int, who: str) -> None:
    """Read until standard input ends."""
    rng = random.Random(seed)
    with path.open("a") as file:
        sys.stdout.write("working\n")
        sys.stdout.flush()
        async with trio.open_nursery() as nursery:
            for number, target in enumerate(TARGETS):
                for kind, lasts_s in (("long", math.inf), ("short", 6.0)):
                    recorder = Recorder(f"{who}.{kind}-{number}", file)
                    nursery.start_soon(read, address, recorder, target, random.Random(rng.random()), lasts_s)
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(run, f"{sys.argv[1]}?read=follower", Path(sys.argv[2]), int(sys.argv[3]), f"{sys.argv[4]}-{os.getpid()}")
