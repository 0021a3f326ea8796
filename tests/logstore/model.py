"""A simulation of nodes that share a log store: owners, sleeping and deposed ones, claimants, followers and collectors.

One thread, one seeded source of random numbers, no clock. Each node is a set of generators, one of whose operations
is carried out at a time, so a node can sleep between any two requests for as long as it takes the others to do
anything. A create is applied and answered, applied and its answer lost, applied later (also after its sender is
gone), refused, or answered by 409 or 503; a delete may be applied again later.

What is checked all the time: whatever a node has been told is at an lsn (by reading, or because its own write was
acknowledged) is what every node ever finds there; no value is at two lsns; an owner that begins to serve has read all
that was acknowledged before it last looked at the claims. At the end everything that was ever told is read by a new
owner.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator
from typing import Any, Final

from journal.logstore.checkpoints import Checkpoint, create_checkpoint
from journal.logstore.collection import collect
from journal.logstore.driver import perform
from journal.logstore.errors import LogStoreError, StoreDeposedError
from journal.logstore.keys import Position
from journal.logstore.objects import HEADER_BYTES
from journal.logstore.ownership import Member, Ownership, check_owned, own
from journal.logstore.reading import AtTail, LogReader, Restarted, SlotRead
from journal.logstore.settling import settle_create
from journal.logstore.steps import Create, Delete, Operation, Pause
from journal.logstore.stores.memory import Fault, MemoryLogStore
from journal.logstore.writing import SlotWrite, SlotWriter

ROOT: Final = "store"
STORE_ID: Final = b"S" * 16
_FAULTS: Final = (Fault.ANSWER_LOST, Fault.LATE, Fault.LATE, Fault.REFUSED, Fault.CONFLICT, Fault.UNAVAILABLE)
_SPEEDS: Final = (0.0, 0.0, 0.2, 1.0, 4.0, 16.0)
MOST_NODES: Final = 5


class BrokenPromiseError(AssertionError):
    """The log is not what somebody was told."""


class Task:
    """A generator and the operation that it waits for."""

    def __init__(self, steps: Generator[Operation, Any, Any]) -> None:
        self.steps = steps
        self.operation: Operation | None = next(steps)
        self.result: Any = None

    def advance(self, world: World) -> bool:
        """Carry the operation out. Returns whether that was the last one."""
        assert self.operation is not None
        try:
            try:
                answer = world.perform(self.operation)
            except LogStoreError as error:
                self.operation = self.steps.throw(error)
            else:
                self.operation = self.steps.send(answer)
        except StopIteration as end:
            self.operation, self.result = None, end.value
            return True
        return False


class World:
    """The store, the nodes, and what anybody was told."""

    def __init__(self, seed: int, fault_share: float = 0.15, window: int | None = None) -> None:
        self.random = random.Random(seed)
        self.window = window or self.random.choice((1, 1, 2, 4))
        self.fault_share = fault_share
        self.store = MemoryLogStore(self._fault)
        # In a calm world owners live long and collect much, and claimants are slow.
        self.is_calm = self.random.random() < 0.5
        self.late_deletes: list[str] = []
        self.told: dict[int, bytes] = {}
        self.places: dict[bytes, int] = {}
        self.acknowledged_lsn = 1
        self.nodes: list[Owner | Follower] = []
        self.counts = Counter[str]()
        self._names = 0

    def play(self, steps: int) -> None:
        for _ in range(steps):
            self._step()
        self.quiesce()

    def quiesce(self) -> None:
        """Everybody but late creates and deletes is gone; a new owner reads it all."""
        self.fault_share = 0.0
        for _ in range(2):
            while self.store.late:
                self.store.apply_late(self.random.randrange(len(self.store.late)))
            for key in self.late_deletes:
                self.store.delete(key)
            reader = Owner(self, self.name())
            while not reader.is_serving:
                reader.advance()
            missing = [lsn for lsn in self.told if lsn >= reader.next_lsn]
            if missing:
                raise BrokenPromiseError(f"lsns {missing} are lost: the log ends before {reader.next_lsn}")

    def learn(self, lsn: int, value: bytes) -> None:
        """Somebody was told that this value is at this lsn."""
        known = self.told.setdefault(lsn, value)
        if known != value:
            raise BrokenPromiseError(f"lsn {lsn} is {value!r} for one node and {known!r} for another")
        place = self.places.setdefault(value, lsn)
        if place != lsn:
            raise BrokenPromiseError(f"{value!r} is at lsns {place} and {lsn}")

    def perform(self, operation: Operation) -> Any:
        if isinstance(operation, Pause):
            return None
        if isinstance(operation, Delete) and self.random.random() < self.fault_share:
            self.late_deletes.append(operation.key)
        return perform(self.store, operation)

    def name(self) -> int:
        self._names += 1
        return self._names

    def nonce(self) -> bytes:
        return self.random.randbytes(16)

    def _fault(self, key: str) -> Fault:
        return self.random.choice(_FAULTS) if self.random.random() < self.fault_share else Fault.NONE

    def _step(self) -> None:
        event = self.random.random()
        if event < 0.02 and self.store.late:
            self.store.apply_late(self.random.randrange(len(self.store.late)))
        elif event < 0.03 and self.late_deletes:
            self.store.delete(self.late_deletes.pop(self.random.randrange(len(self.late_deletes))))
        elif event < (0.033 if self.is_calm else 0.045) and len(self.nodes) < MOST_NODES:
            kind = Follower if self.random.random() < 0.3 else Owner
            self.nodes.append(kind(self, self.name()))
            self.nodes[-1].speed = self.random.choice(_SPEEDS[2:4] if self.is_calm else _SPEEDS[3:5])
        elif 0.045 < event < 0.047 and self.nodes:
            self.nodes.pop(self.random.randrange(len(self.nodes)))
            self.counts["killed"] += 1
        elif 0.05 < event < (0.06 if self.is_calm else 0.10) and self.nodes:
            self.random.choice(self.nodes).speed = self.random.choice(_SPEEDS)
        elif weights := [node.speed for node in self.nodes if node.speed]:
            awake = [node for node in self.nodes if node.speed]
            node = self.random.choices(awake, weights)[0]
            try:
                node.advance()
            except StoreDeposedError:
                self.counts["deposed"] += 1
                self.nodes.remove(node)
            # The most harm is done by who falls asleep just before a create, and wakes up when all has changed.
            share = 0.02 if isinstance(node, Owner) and node.is_serving else 0.3
            if isinstance(node.operation, Create) and self.random.random() < share:
                node.speed = 0.0
        elif self.nodes:
            self.random.choice(self.nodes).speed = 1.0
        else:
            self.nodes.append(Owner(self, self.name()))


class Reading:
    """What a node knows of the log, and how it learns it."""

    def __init__(self, world: World, name: int) -> None:
        self.world = world
        self.speed = 4.0
        self.name = name
        self.member = Member(ROOT, STORE_ID, name.to_bytes(16, "big"))
        self.values: list[bytes] = []
        self.reader = LogReader(self.member)

    def begin_at(self, checkpoint: Checkpoint) -> None:
        self.values = checkpoint.manifest.split(b",") if checkpoint.manifest else []
        assert len(self.values) == checkpoint.next_lsn - 1
        for lsn, value in enumerate(self.values, 1):
            self.world.learn(lsn, value)

    def learn(self, found: SlotRead | Restarted | AtTail) -> None:
        if isinstance(found, SlotRead):
            self.values.append(found.slot.body)
            self.world.learn(len(self.values), found.slot.body)
        elif isinstance(found, Restarted):
            self.world.counts["restarted"] += 1
            self.begin_at(found.checkpoint)


class Follower(Reading):
    """Reads the log as it grows."""

    def __init__(self, world: World, name: int) -> None:
        super().__init__(world, name)
        self.task = Task(self.reader.read())

    @property
    def operation(self) -> Operation | None:
        return self.task.operation

    def advance(self) -> None:
        if self.task.advance(self.world):
            self.learn(self.task.result)
            self.task = Task(self.reader.read())


class Owner(Reading):
    """Takes the store over, reads it, and writes, checks its claim, makes checkpoints and collects, all at a time."""

    def __init__(self, world: World, name: int) -> None:
        super().__init__(world, name)
        # Servers of one store may have different settings.
        self.window = world.random.choice((1, world.window, world.window))
        self.task: Task | None = Task(own(self.member, world.nonce(), about=b"%d" % self.window, window_of=int))
        self.ownership: Ownership | None = None
        self.is_serving = False
        self.must_have_read = 1
        self.writer: SlotWriter | None = None
        self.writes: dict[Position, tuple[SlotWrite, Task]] = {}
        self.duties: dict[str, Task] = {}
        self.collected_epoch = 1

    @property
    def operation(self) -> Operation | None:
        """What it waits for in taking over, or in the first of its writes."""
        if self.task is not None:
            return self.task.operation
        return next((task.operation for _, task in self.writes.values()), None)

    @property
    def next_lsn(self) -> int:
        return len(self.values) + 1

    def advance(self) -> None:
        if self.task is not None:
            self._advance_taking_over(self.task)
        elif self.world.random.random() < 0.5:
            self._advance_writes()
        else:
            # An owner that looks for higher claims all the time notices a claimant before it can do any harm.
            self._advance_duty(self.world.random.choices(("check", "checkpoint", "collect"), (1, 20, 20))[0])

    def _advance_taking_over(self, task: Task) -> None:
        if not task.advance(self.world):
            return
        if self.ownership is None:
            self.ownership = task.result
            self.must_have_read = self.world.acknowledged_lsn
            if self.ownership.checkpoint is not None:
                self.begin_at(self.ownership.checkpoint)
            self.reader = LogReader(self.member, self.ownership.checkpoint)
        elif isinstance(task.result, AtTail):
            self._serve()
            return
        else:
            self.learn(task.result)
        reading = self.reader.read(self.ownership.epoch)
        try:
            self.task = Task(reading)
        except StopIteration:
            # Nothing is before its own epoch: no request was needed to know that.
            self._serve()

    def _serve(self) -> None:
        assert self.ownership is not None
        self.task = None
        self.is_serving = True
        self.world.counts["taken over"] += 1
        if self.next_lsn < self.must_have_read:
            raise BrokenPromiseError(
                f"epoch {self.ownership.epoch} serves from lsn {self.next_lsn}; {self.must_have_read} was acknowledged"
            )
        self.writer = SlotWriter(self.member, self.ownership.epoch, self.next_lsn, self.window)

    def _advance_writes(self) -> None:
        assert self.writer is not None
        random = self.world.random
        running = [(write, task) for write, task in self.writes.values() if task.operation is not None]
        if self.writer.can_write and (not running or random.random() < 0.5):
            number = self.next_lsn + len(self.writes)
            value = b"%d-%d-%d" % (self.name, number, random.getrandbits(32))
            write = self.writer.prepare(value, number + 1, self.world.nonce())
            self.writes[write.position] = write, Task(settle_create(write.key, write.data))
            return
        write, task = random.choice(running)
        if not task.advance(self.world):
            return
        for done in self.writer.settle(write.position, task.result.is_ours):
            del self.writes[done.position]
            self._acknowledge(done)
        if self.writer.is_fenced:
            raise StoreDeposedError(write.position.epoch)

    def _acknowledge(self, write: SlotWrite) -> None:
        value = write.data[HEADER_BYTES:]
        self.values.append(value)
        self.world.learn(write.next_lsn - 1, value)
        self.world.acknowledged_lsn = max(self.world.acknowledged_lsn, write.next_lsn)
        self.world.counts["written"] += 1

    def _advance_duty(self, name: str) -> None:
        assert self.writer is not None
        assert self.ownership is not None
        task = self.duties.get(name)
        if task is None:
            epoch = self.ownership.epoch
            if name == "check":
                steps: Generator[Operation, Any, Any] = check_owned(ROOT, epoch)
            elif name == "checkpoint":
                checkpoint = Checkpoint(self.writer.acknowledged, self.next_lsn, b",".join(self.values))
                steps = create_checkpoint(ROOT, STORE_ID, self.member.node_id, self.world.nonce(), checkpoint)
            else:
                steps = collect(self.member, epoch, self.collected_epoch)
            self.duties[name] = Task(steps)
        elif task.advance(self.world):
            del self.duties[name]
            if name == "collect":
                self.collected_epoch = task.result
                self.world.counts["collected"] += 1
            elif name == "checkpoint":
                self.world.counts["checkpoints"] += 1
