"""A program of many concurrent clients that writes down what it did and saw, until its standard input is closed.

    python -m tests.torture.worker HOST:PORT HISTORY SEED NAME

Its clients append, read, subscribe alone and in groups, commit changes together, compare and set state and cursors,
switch modes, convert and trim. Each client lives for a moment and is followed by another; its connections are cut at
times. The server may be stopped, killed or broken meanwhile.
"""

from __future__ import annotations

import math
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from journal.client import Client, SessionTimes, open_client
from journal.client.address import Address
from journal.client.append_future import AppendFuture
from journal.client.receiver import Delivery, Receiver
from journal.client.transport import Transport, open_transport
from journal.protocol.errors import (
    InternalError,
    NotAuthorizedError,
    QuotaExceededError,
    RemoteProtocolError,
    ShuttingDownError,
)
from journal.protocol.messages import StatePutRequest
from shards.back_off import BackOff
from shards.errors import (
    BatchError,
    CorruptionError,
    DiskFullError,
    DurabilityUnavailableError,
    InvalidRequestError,
    LimitExceededError,
    OffsetConflictError,
    OffsetOutOfRangeError,
    OverloadedError,
    SequenceGapError,
    ShardDamagedError,
    ShardNotFoundError,
    StorageError,
    VersionConflictError,
)
from shards.format.batch import encode_values, read_records
from shards.format.record import Gap
from shards.model import AckLevel, Mode, ShardConfig
from shards.position import Start
from shards.subscriptions.events import Progress
from tests.torture import values
from tests.torture.history import (
    Append,
    Delete,
    Event,
    Fault,
    Get,
    Observed,
    Outcome,
    Poll,
    Put,
    Read,
    Recorder,
    Shard,
    Trim,
)

FILES = ("t/file/0", "t/file/1", "t/file/2")
CONDITIONAL = "t/conditional"
TOGETHER = ("t/together/0", "t/together/1")
SWITCHED = "t/switched"
MEMORY = "t/memory"
TRIMMED = ("t/file/1", SWITCHED)
SHARDS = (*FILES, CONDITIONAL, *TOGETHER, SWITCHED, MEMORY)
ALWAYS_FILE = (*FILES, CONDITIONAL, *TOGETHER)
KEYS = tuple(f"k/{number}" for number in range(6))
CURSORS = (("t/file/0", "c0"), ("t/file/2", "c1"))
GROUPS = {"shared": "t/file/+", "sticky/pinned": "t/file/+"}
CLIENTS = 3
SENT_AHEAD = 8

# After one of these nothing was done, and nothing of it will be.
CERTAIN = (
    DiskFullError,
    DurabilityUnavailableError,
    InvalidRequestError,
    LimitExceededError,
    NotAuthorizedError,
    OffsetConflictError,
    OffsetOutOfRangeError,
    OverloadedError,
    QuotaExceededError,
    SequenceGapError,
    ShardNotFoundError,
    ShuttingDownError,
    VersionConflictError,
)


# No fault that is made here may show as one of these.
FAULTS = (BatchError, CorruptionError, InternalError, RemoteProtocolError, ShardDamagedError)


def observed(batches: memoryview | bytes, first_offset: int) -> tuple[list[Observed], list[tuple[int, int]]]:
    """The records and gaps of batches, from an offset on."""
    records: list[Observed] = []
    gaps: list[tuple[int, int]] = []
    for item in read_records(batches, start_offset=first_offset):
        if isinstance(item, Gap):
            gaps.append((item.first_offset, item.next_offset))
        else:
            records.append(Observed(item.offset, item.lsn, item.append_time_us, values.decode(item.value)))
    return records, gaps


@attrs.define(eq=False)
class Session:
    """One client with a name of its own, from its opening to its end."""

    name: str
    client: Client
    recorder: Recorder
    rng: random.Random
    numbers: dict[str, int] = attrs.Factory(dict)
    assignment_count: int = 0

    async def pause(self, longest_s: float) -> None:
        """What real clients do between two requests."""
        await trio.sleep(self.rng.random() * longest_s)

    def new_values(self, shard: str, count: int) -> tuple[int, list[str]]:
        """The number of the next append to a shard and its values."""
        number = self.numbers[shard] = self.numbers.get(shard, -1) + 1
        return number, [f"{self.name}/{SHARDS.index(shard)}/{number}/{place}" for place in range(count)]

    def new_assignment(self, kind: str) -> str:
        """A name that no other subscription of this client has, also when an error ended the task that began it."""
        self.assignment_count += 1
        return f"{self.name}/{kind}-{self.assignment_count}"

    async def settle(self, number: str, pending: AppendFuture, done: Callable[[], None]) -> None:
        """Write down what became of an append."""
        try:
            appended = await pending.wait()
        except StorageError as error:
            self.recorder.end(number, self.ended(error), error=repr(error))
        else:
            level = "durable" if appended.level is AckLevel.DURABLE else "memory"
            self.recorder.end(number, Outcome.OK, offset=appended.base_offset, level=level)
        finally:
            done()

    async def write(self, shard: str) -> None:
        """Append, several ahead of their acknowledgements."""
        ahead = trio.Semaphore(SENT_AHEAD)
        async with trio.open_nursery() as nursery:
            while True:
                await ahead.acquire()
                number, names = self.new_values(shard, self.rng.choice((1, 1, 2, 5, 20)))
                level = self.rng.choice((AckLevel.DEFAULT, AckLevel.DEFAULT, AckLevel.DURABLE, AckLevel.MEMORY))
                noted = self.recorder.begin(Append, shard=shard, values=names, stream=self.name, number=number)
                try:
                    pending = self.client.append_nowait(shard, [values.encode(name) for name in names], ack=level)
                except OverloadedError as error:
                    self.recorder.end(noted, Outcome.FAILED, error=repr(error))
                    ahead.release()
                    await self.client.wait_for_room()
                    continue
                except StorageError as error:
                    # The client is closed or fenced, and this session is about to end.
                    self.recorder.end(noted, Outcome.FAILED, error=repr(error))
                    ahead.release()
                    await self.pause(0.2)
                    continue
                nursery.start_soon(self.settle, noted, pending, ahead.release)
                await self.pause(0.03)

    async def write_where_expected(self) -> None:
        """Append only where the shard is believed to end; others do the same."""
        expected = 0
        while True:
            number, names = self.new_values(CONDITIONAL, self.rng.choice((1, 3)))
            noted = self.recorder.begin(Append, shard=CONDITIONAL, values=names, stream=self.name, number=number)
            data = [values.encode(name) for name in names]
            try:
                appended = await self.client.append(CONDITIONAL, data, expected_offset=expected)
            except OffsetConflictError as error:
                self.recorder.end(noted, Outcome.FAILED, error=repr(error))
                expected = error.next_offset
            except StorageError as error:
                self.recorder.end(noted, self.ended(error), error=repr(error))
                await self.pause(0.2)
            else:
                self.recorder.end(noted, Outcome.OK, offset=appended.base_offset, level="durable")
                expected = appended.base_offset + len(names)
            await self.pause(0.03)

    async def read(self) -> None:
        """Read from somewhere on, for a while, then from somewhere else."""
        while True:
            shard = self.rng.choice(SHARDS)
            offset = self.rng.choice((0, 0, self.rng.randrange(3000)))
            for _ in range(self.rng.randrange(1, 20)):
                went_on = await self.read_once(shard, offset, max_bytes=self.rng.choice((1, 8 << 10, 64 << 10)))
                if went_on is None:
                    break
                offset = went_on
            await self.pause(0.05)

    async def read_once(self, shard: str, offset: int, *, max_bytes: int = 1 << 20, last: bool = False) -> int | None:
        """Read, write it down, and give where to go on; None where there is no more, or none of this offset."""
        began_ns = time.monotonic_ns()
        try:
            reply = await self.client.fetch(shard, offset, max_bytes=max_bytes)
        except OffsetOutOfRangeError as error:
            fields = {"next_offset": error.next_offset, "start_offset": error.start_offset, "last": last}
            self.recorder.note(Read, began_ns, Outcome.FAILED, shard=shard, offset=offset, **fields)
            # A complete read goes on behind what was trimmed meanwhile.
            return error.start_offset if last and offset < error.start_offset else None
        records, gaps = observed(reply.batches, offset)
        self.recorder.note(
            Read,
            began_ns,
            shard=shard,
            offset=offset,
            records=records,
            gaps=gaps,
            next_offset=reply.next_offset,
            start_offset=reply.start_offset,
            last=last,
        )
        return reply.next_offset if reply.next_offset > offset else None

    def note_poll(self, assignment: str, began_ns: float, delivery: Delivery, **group: Any) -> None:
        """Write down a delivery."""
        records, gaps = observed(delivery.batches, delivery.first_offset)
        kept = [record for record in records if record.offset < delivery.next_offset]
        self.recorder.note(
            Poll,
            began_ns,
            assignment=assignment,
            shard=delivery.shard,
            first_offset=delivery.first_offset,
            next_offset=delivery.next_offset,
            records=kept,
            gaps=gaps,
            epoch=delivery.epoch,
            **group,
        )

    def note_failures(self, assignment: str, receiver: Receiver) -> None:
        """Write down each shard that the server delivers no further to this subscription."""
        receiver.failed_shards = NotedFailures(self.recorder, assignment)

    async def subscribe(self) -> None:
        """Follow one shard, or a filter, from somewhere on; then begin again."""
        while True:
            assignment = self.new_assignment("subscription")
            target: dict[str, str] = self.rng.choice(
                ({"shard": self.rng.choice(SHARDS)}, {"topic_filter": "t/#"}, {"topic_filter": "t/+/0"})
            )
            start = self.rng.choice((Start.earliest(), Start.latest(), Start.lsn(self.rng.randrange(1, 2000))))
            with trio.move_on_after(self.rng.uniform(0.2, 4)):
                async with self.client.subscribe(**target, start=start, credit_bytes=64 << 10) as subscription:
                    self.note_failures(assignment, subscription)
                    while True:
                        began_ns = time.monotonic_ns()
                        delivery = await anext(subscription)
                        self.note_poll(assignment, began_ns, delivery)

    async def follow(self) -> None:
        """Follow all shards and their progress."""
        while True:
            assignment = self.new_assignment("feed")
            after = self.rng.choice((None, 0, self.rng.randrange(2000)))
            with trio.move_on_after(self.rng.uniform(0.2, 4)):
                async with self.client.follow("t/#", after, credit_bytes=64 << 10) as feed:
                    self.note_failures(assignment, feed)
                    async for item in feed:
                        if not isinstance(item, Progress):
                            self.note_poll(assignment, time.monotonic_ns(), item)

    async def consume(self, group: str, topic_filter: str) -> None:
        """Be a member of a group, which is done with most of what it gets."""
        while True:
            name = self.new_assignment(group)
            with trio.move_on_after(self.rng.uniform(0.5, 4)):
                async with self.client.subscribe(
                    topic_filter=topic_filter, start=Start.earliest(), group=group, credit_bytes=64 << 10
                ) as member:
                    while True:
                        began_ns = time.monotonic_ns()
                        delivery = await anext(member)
                        # Written before it is told: the server may act on it at once.
                        is_done = self.rng.random() < 0.98
                        assignment = f"{name}/{delivery.epoch}"
                        self.note_poll(assignment, began_ns, delivery, group=group, acknowledged=is_done)
                        if is_done:
                            member.acknowledge(delivery)
                        await self.pause(0.002)

    async def change_state(self) -> None:
        """Compare and set, set, delete and read keys of the state store."""
        while True:
            key = self.rng.choice(KEYS)
            found = await self.get_state(key)
            if self.rng.random() < 0.1:
                await self.delete_state(key)
            else:
                await self.put_state(key, None if self.rng.random() < 0.1 else found)
            await self.pause(0.05)

    async def move_cursors(self) -> None:
        """Compare and set, set and read cursors."""
        while True:
            shard, name = self.rng.choice(CURSORS)
            found = await self.get_cursor(shard, name)
            await self.put_cursor(shard, name, None if self.rng.random() < 0.3 else found)
            await self.pause(0.05)

    async def get_state(self, key: str) -> int:
        """Read a key, write it down, and give its version."""
        began_ns = time.monotonic_ns()
        found = await self.client.get_state(key.encode())
        value, version = (None, 0) if found is None else (found.value.decode(), found.version)
        self.recorder.note(Get, began_ns, key=f"state/{key}", value=value, version=version)
        return version

    async def get_cursor(self, shard: str, name: str) -> int:
        """Read a cursor, write it down, and give its version."""
        began_ns = time.monotonic_ns()
        found = await self.client.get_cursor(shard, name)
        value, version = (None, 0) if found is None else (str(found.offset), found.version)
        self.recorder.note(Get, began_ns, key=f"cursor/{shard}/{name}", value=value, version=version)
        return version

    async def put_state(self, key: str, expected: int | None) -> None:
        """Set a key to a new value."""
        name = f"{self.name}/{time.monotonic_ns()}"

        async def ask() -> int:
            stored = await self.client.put_state(key.encode(), name.encode(), expected_version=expected)
            return stored.version

        await self.put(f"state/{key}", name, expected, ask)

    async def put_cursor(self, shard: str, name: str, expected: int | None) -> None:
        """Set a cursor somewhere."""
        offset = self.rng.randrange(50)

        async def ask() -> int:
            cursor = await self.client.commit_cursor(shard, name, offset, expected_version=expected)
            return cursor.version

        await self.put(f"cursor/{shard}/{name}", str(offset), expected, ask)

    async def delete_state(self, key: str) -> None:
        """Remove a key."""
        noted = self.recorder.begin(Delete, key=f"state/{key}")
        try:
            await self.client.delete_state(key.encode())
        except StorageError as error:
            self.recorder.end(noted, self.ended(error), error=repr(error))
        else:
            self.recorder.end(noted, Outcome.OK)

    async def put(self, key: str, value: str, expected: int | None, ask: Callable[[], Awaitable[int]]) -> None:
        """Write a versioned value, and down what became of it."""
        noted = self.recorder.begin(Put, key=key, value=value, expected=expected)
        try:
            version = await ask()
        except VersionConflictError as error:
            # The version that it names may be that of a write which is not committed yet: it says nothing to others.
            if error.found_version == expected:
                self.recorder.note(Fault, time.monotonic_ns(), error=repr(error))
            self.recorder.end(noted, Outcome.FAILED, error=repr(error))
        except StorageError as error:
            self.recorder.end(noted, self.ended(error), error=repr(error))
            await self.pause(0.2)
        else:
            self.recorder.end(noted, Outcome.OK, version=version)

    async def change_together(self) -> None:
        """Append to two shards and put a key, all or nothing."""
        while True:
            transaction = f"{self.name}/{time.monotonic_ns()}"
            names = {shard: [f"{transaction}/{shard[-1]}/{place}" for place in range(2)] for shard in TOGETHER}
            key = self.rng.choice(KEYS)
            found = await self.get_state(key)
            noted = [
                self.recorder.begin(Append, shard=shard, values=names[shard], transaction=transaction)
                for shard in TOGETHER
            ]
            noted_put = self.recorder.begin(
                Put, key=f"state/{key}", value=transaction, expected=found, transaction=transaction
            )
            now_us = time.time_ns() // 1000
            batches = [
                (shard, encode_values([values.encode(name) for name in names[shard]], timestamp_us=now_us))
                for shard in TOGETHER
            ]
            put = StatePutRequest(key.encode(), transaction.encode(), found)
            try:
                appended, stored = await self.client.commit(batches, [put], [])
            except StorageError as error:
                for number in (*noted, noted_put):
                    self.recorder.end(number, self.ended(error), error=repr(error))
            else:
                for number, one in zip(noted, appended, strict=True):
                    level = "durable" if one.level is AckLevel.DURABLE else "memory"
                    self.recorder.end(number, Outcome.OK, offset=one.base_offset, level=level)
                self.recorder.end(noted_put, Outcome.OK, version=stored[0].version)
            await self.pause(0.1)

    async def administer(self) -> None:
        """Switch modes, convert and trim."""
        while True:
            await self.pause(0.5)
            act = self.rng.randrange(6)
            if act < 3:
                mode = self.rng.choice((Mode.FILE, Mode.MEMORY))
                with self.noting(SWITCHED, f"switch to {mode.value} mode"):
                    await self.client.set_mode(SWITCHED, mode)
            elif act < 5:
                shard = self.rng.choice(SHARDS)
                with self.noting(shard, "convert"):
                    await (self.client.convert if act == 4 else self.client.roll)(shard)
            else:
                await self.trim(self.rng.choice(TRIMMED))

    @contextmanager
    def noting(self, shard: str, what: str) -> Iterator[None]:
        """Write down that something is asked for that explains what others see."""
        noted = self.recorder.begin(Event, shard=shard, what=what)
        try:
            yield
        except StorageError as error:
            self.recorder.end(noted, _outcome(error), error=repr(error))
            raise
        self.recorder.end(noted, Outcome.OK)

    async def trim(self, shard: str) -> None:
        """Drop the first part of what a shard holds."""
        info = await self.client.describe_shard(shard)
        before = info.start_offset + int((info.next_offset - info.start_offset) * self.rng.random() * 0.3)
        noted = self.recorder.begin(Trim, shard=shard, before=before)
        try:
            await self.client.trim(shard, before)
        except StorageError as error:
            self.recorder.end(noted, self.ended(error), error=repr(error))
        else:
            self.recorder.end(noted, Outcome.OK)

    async def keep(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task again and again: what the server refuses, or a lost connection, ends it."""
        while True:
            try:
                await task()
            except StorageError as error:
                self.ended(error)
                await self.pause(0.2)

    def ended(self, error: StorageError) -> Outcome:
        """What an error says of the operation that it ended; what must not be is written down besides."""
        if isinstance(error, FAULTS):
            self.recorder.note(Fault, time.monotonic_ns(), error=repr(error))
        return _outcome(error)


def _outcome(error: StorageError) -> Outcome:
    return Outcome.FAILED if isinstance(error, CERTAIN) else Outcome.UNKNOWN


class NotedFailures(dict[str, StorageError]):
    """The failed shards of a subscription; each is written down when the server reports it."""

    def __init__(self, recorder: Recorder, assignment: str) -> None:
        super().__init__()
        self._recorder = recorder
        self._assignment = assignment

    def __setitem__(self, shard: str, error: StorageError) -> None:
        super().__setitem__(shard, error)
        what = f"the server delivers the shard no further: {error!r}"
        self._recorder.note(Event, time.monotonic_ns(), shard=shard, assignment=self._assignment, what=what)


class Worker:
    """Runs clients one after another."""

    def __init__(self, address: str, recorder: Recorder, rng: random.Random) -> None:
        self._address = address
        self._recorder = recorder
        self._rng = rng

    async def run_clients(self, number: int) -> None:
        """One client after another."""
        session = 0
        rng = random.Random(self._rng.random())
        while True:
            session += 1
            with trio.move_on_after(rng.uniform(1, 8)):
                await self.run_client(f"{self._recorder.who}.{number}.{session}", rng)

    async def run_client(self, name: str, rng: random.Random) -> None:
        """One client with all its tasks, until cancelled."""
        places = Address.parse_all(self._address)
        transports: list[Transport] = []

        async def connect(nursery: trio.Nursery) -> Transport:
            transport = await open_transport(places[0], nursery)
            transports.append(transport)
            return transport

        async def cut() -> None:
            while True:
                await trio.sleep(rng.uniform(0.5, 4))
                while transports:
                    await transports.pop().aclose()

        async with open_client(
            self._address,
            name=name,
            join_appends=rng.random() < 0.5,
            backoff=BackOff(0.05, 0.2),
            flush_timeout_s=0.2,
            # Of several servers the client chooses one itself.
            connect=connect if len(places) == 1 else None,
            times=SessionTimes(first_within_s=math.inf),
        ) as client:
            session = Session(name, client, attrs.evolve(self._recorder, who=name), rng)
            tasks: list[Callable[[], Awaitable[None]]] = [
                session.write_where_expected,
                session.read,
                session.subscribe,
                session.follow,
                session.change_state,
                session.move_cursors,
                session.change_together,
                session.administer,
            ]
            for shard in (*rng.sample(FILES, 2), SWITCHED, MEMORY):
                tasks.append(lambda shard=shard: session.write(shard))  # type: ignore[misc]
            for group, topic_filter in GROUPS.items():
                tasks.append(lambda group=group, wanted=topic_filter: session.consume(group, wanted))  # type: ignore[misc]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cut)
                for task in tasks:
                    nursery.start_soon(session.keep, task)


async def create_shards(address: str, recorder: Recorder) -> None:
    """Make the shards, and write down of which sort they are."""
    async with open_client(address, name="setup", times=SessionTimes(first_within_s=math.inf)) as client:
        for shard in SHARDS:
            mode = Mode.MEMORY if shard == MEMORY else Mode.FILE
            await client.create_shard(shard, ShardConfig(mode=mode), exist_ok=True)
            recorder.note(Shard, time.monotonic_ns(), shard=shard, always_file=shard in ALWAYS_FILE)


async def run(address: str, path: Path, seed: int, who: str) -> None:
    """Work until standard input ends."""
    rng = random.Random(seed)
    with path.open("a") as file:
        worker = Worker(address, Recorder(who, file), rng)
        sys.stdout.write("working\n")
        sys.stdout.flush()
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(worker.run_clients, number)
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(run, sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), f"{sys.argv[4]}-{os.getpid()}")
