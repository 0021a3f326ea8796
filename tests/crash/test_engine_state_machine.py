"""The engine against a plain model, step by step, with restarts and crashes; Hypothesis makes up the steps.

Every step waits for its answer, so the model knows exactly what must be there: what concurrency adds is the business of
`test_simulated_crashes`. The default run is derandomised; `make crash` goes further and prints how to repeat a failure.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import attrs
import hypothesis.strategies as st
import pytest
import trio
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from journal.engine import Engine
from shards.errors import (
    OffsetConflictError,
    OffsetOutOfRangeError,
    SequenceGapError,
    ShardExistsError,
    ShardNotFoundError,
    StaleEpochError,
    VersionConflictError,
)
from shards.format.batch import encode_values, read_records
from shards.format.record import Gap
from shards.model import AckLevel, Appended, Mode, ProducerIdentity, Retention, SegmentKind, ShardConfig
from shards.position import Start
from shards.seams.clock import ManualClock
from tests.crash.segment_files import check_files
from tests.crash.simulation import DATA, QUIET, deterministic, opened
from tests.journal.engines import apply_retention
from tests.simulation.file_system import CrashNow, SimulatedFileSystem, everything_lost, everything_survived

T = TypeVar("T")

CONFIG = attrs.evolve(QUIET, shards=attrs.evolve(QUIET.shards, memory_max_bytes=1 << 30))

names = st.sampled_from(["a", "b/c", "d"])
modes = st.sampled_from(list(Mode))
sizes = st.lists(st.integers(0, 700), min_size=1, max_size=4)
fractions = st.floats(0, 1)
batches = st.lists(
    st.tuples(sizes, st.integers(0, 20_000), st.sampled_from(["none", "none", "right", "wrong"])),
    min_size=1,
    max_size=5,
)
guesses = st.sampled_from(["none", "right", "wrong"])


class Host:
    """Runs engines in a trio loop of its own thread, one after the other on one simulated disk."""

    def __init__(self, rng: random.Random, clock: ManualClock) -> None:
        self._rng = rng
        self._clock = clock
        self._files = SimulatedFileSystem()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._crash: Callable[[int], int] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._await_engine()

    def _await_engine(self) -> None:
        self._ready.wait()
        self._ready.clear()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            # Raised in the test's thread.
            self._error = error
            self._ready.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._on = True
        while self._on:
            self._over = trio.Event()
            self._crash = None
            try:
                async with opened(self._files, self._rng, self._clock, CONFIG) as engine:
                    self.engine = engine
                    self._ready.set()
                    await self._over.wait()
                    self._lose_power()
            except BaseExceptionGroup as errors:
                # A nursery wraps the loss of power; anything beside it is an error of its own.
                if errors.split(CrashNow)[1] is not None:
                    raise
            except CrashNow:
                continue

    @property
    def files(self) -> SimulatedFileSystem:
        """The disk as it is since the last loss of power."""
        return self._files

    def _lose_power(self) -> None:
        if self._crash is not None:
            self._files = self._files.crash(self._crash)
            raise CrashNow

    def call(self, work: Callable[[Engine], Awaitable[T]]) -> T:
        """Run something on the engine."""
        return trio.from_thread.run(work, self.engine, trio_token=self._token)

    def restart(self, crash: Callable[[int], int] | None) -> None:
        """Close the engine, or let its machine lose power, and open it again."""
        self._crash = crash
        self._token.run_sync_soon(self._over.set)
        self._await_engine()

    def close(self) -> None:
        """Close the engine and end the thread."""
        if self._thread.is_alive():
            self._on = False
            self._token.run_sync_soon(self._over.set)
            self._thread.join()
        if self._error is not None:
            raise self._error


@attrs.define
class Batch:
    base: int
    values: list[bytes]
    newest_us: int
    lsn: int
    in_memory: bool

    @property
    def end(self) -> int:
        return self.base + len(self.values)


@attrs.define
class Sending:
    """A producer's place in a shard.

    Attributes:
        lost: Its newest batch was lost with the memory.
        may_be_ahead: The shard lost what it had in memory, so the producer may have sent more than is known.
    """

    epoch: int
    next_sequence: int
    last: Batch | None = None
    lost: bool = False
    may_be_ahead: bool = False


@attrs.define
class ShardModel:
    """What a shard is to have.

    Attributes:
        cuts: Where the mode was changed and where starts found the end: two gaps that are side by side meet there.
    """

    mode: Mode
    batches: list[Batch] = attrs.Factory(list)
    lost: list[Batch] = attrs.Factory(list)
    start: int = 0
    end: int = 0
    cursors: dict[str, tuple[int, int]] = attrs.Factory(dict)
    sendings: dict[str, Sending] = attrs.Factory(dict)
    cuts: set[int] = attrs.Factory(set)

    def records(self) -> dict[int, bytes]:
        return {batch.base + n: value for batch in self.batches for n, value in enumerate(batch.values)}


class EngineMachine(RuleBasedStateMachine):
    """Rules come in pairs with what the model says of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        rng = self.stack.enter_context(deterministic(1))
        self.clock = ManualClock()
        self.host = Host(rng, self.clock)
        self.shards: dict[str, ShardModel] = {}
        self.state: dict[bytes, tuple[bytes, int, int]] = {}
        self.producers: dict[str, ProducerIdentity] = {}
        self.number = 0

    def teardown(self) -> None:
        try:
            for name in self.shards:
                self._check(name)
        finally:
            try:
                self.host.close()
            finally:
                self.stack.close()

    def call(self, work: Callable[[Engine], Awaitable[T]]) -> T:
        return self.host.call(work)

    def commands(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        return self.call(lambda engine: getattr(engine.parts.commands, method)(*arguments, **keywords))

    # Shards

    @initialize(mode=modes)
    def begin_with_some(self, mode: Mode) -> None:
        self.create("a", mode)
        self.create("b/c", Mode.FILE)
        self.open_producer("p")

    @rule(name=names, mode=modes)
    def create(self, name: str, mode: Mode) -> None:
        if name in self.shards:
            with pytest.raises(ShardExistsError):
                self.commands("create_shard", name, ShardConfig(mode=mode))
            return
        info = self.commands("create_shard", name, ShardConfig(mode=mode))
        assert (info.start_offset, info.next_offset) == (0, 0)
        self.shards[name] = ShardModel(mode)

    @rule(name=names, surely=st.sampled_from([False, False, True]))
    def delete(self, name: str, surely: bool) -> None:
        if name in self.shards:
            if not surely:
                return
            self.commands("delete_shard", name)
            del self.shards[name]
        else:
            with pytest.raises(ShardNotFoundError):
                self.commands("delete_shard", name)

    @rule(name=names, mode=modes)
    def set_mode(self, name: str, mode: Mode) -> None:
        if model := self.shards.get(name):
            assert self.commands("set_mode", name, mode).config.mode is mode
            model.mode = mode
            model.cuts.add(model.end)

    @rule(name=names)
    def roll(self, name: str) -> None:
        if name in self.shards:
            self.commands("roll", name)

    @rule(name=names)
    def convert(self, name: str) -> None:
        if name in self.shards:

            async def convert(engine: Engine) -> list[SegmentKind]:
                info = await engine.convert(name)
                return [
                    segment.kind
                    for segment in info.segments
                    if segment.closed and segment.next_offset > max(segment.base_offset, info.start_offset)
                ]

            assert SegmentKind.LOG not in self.call(convert)

    @rule(name=names, fraction=fractions)
    def trim(self, name: str, fraction: float) -> None:
        if model := self.shards.get(name):
            target = round(model.start + (model.end - model.start) * fraction)
            assert self.commands("trim", name, target).start_offset == target
            model.start = target
            with pytest.raises(OffsetOutOfRangeError):
                self.commands("trim", name, model.end + 1)

    @rule(name=names, most=st.integers(0, 10))
    def retain(self, name: str, most: int) -> None:
        if model := self.shards.get(name):
            self.commands("configure_shard", name, retention=Retention(max_records=most))

            async def apply(engine: Engine) -> int:
                await apply_retention(engine)
                await engine.parts.committer.wait_for_all()
                await engine.parts.checkpointer.remove_files()
                return engine.parts.table.by_name(name).start_offset

            start = self.call(apply)
            kept = sum(offset >= start for offset in model.records())
            assert start >= model.start
            assert start == model.start or (most and len(model.records()) - kept > 0)
            model.start = start
            self.commands("configure_shard", name, retention=Retention())

    # Appending

    def _append(self, name: str, sizes: list[int], age_us: int, **fields: Any) -> tuple[Appended, Batch]:
        model = self.shards[name]
        values = []
        for size in sizes:
            self.number += 1
            values.append(b"%d." % self.number + b"x" * size)
        newest = self.clock.now_us() - age_us
        expected = fields.pop("expected_offset", None)
        encoded = encode_values(values, timestamp_us=newest, **fields)

        async def append(engine: Engine) -> tuple[Appended, int]:
            shard = engine.parts.table.by_name(name)
            return await engine.append(shard, encoded, expected_offset=expected), shard.published_lsn

        appended, lsn = self.call(append)
        return appended, Batch(appended.base_offset, values, newest, lsn, model.mode is Mode.MEMORY)

    def _appended(self, model: ShardModel, appended: Appended, batch: Batch) -> None:
        assert appended.base_offset == model.end
        assert not appended.duplicate
        assert appended.level is (AckLevel.MEMORY if batch.in_memory else AckLevel.DURABLE)
        model.batches.append(batch)
        model.end = batch.end

    @rule(name=names, batches=batches)
    def append(self, name: str, batches: list[tuple[list[int], int, str]]) -> None:
        for sizes, age_us, guess in batches:
            self._append_as_expected(name, sizes, age_us, guess)

    @rule(batches=batches)
    def append_to_first(self, batches: list[tuple[list[int], int, str]]) -> None:
        self.append("a", batches)

    @rule(mode=modes, batches=batches)
    def switch_and_append(self, mode: Mode, batches: list[tuple[list[int], int, str]]) -> None:
        self.set_mode("b/c", mode)
        self.append("b/c", batches)

    def _append_as_expected(self, name: str, sizes: list[int], age_us: int, guess: str) -> None:
        self.clock.advance(microseconds=500)
        model = self.shards.get(name)
        if model is None:
            return
        if guess == "wrong":
            with pytest.raises(OffsetConflictError):
                self._append(name, sizes, age_us, expected_offset=model.end + 1)
            return
        expected = model.end if guess == "right" else None
        self._appended(model, *self._append(name, sizes, age_us, expected_offset=expected))

    @rule(producer=st.sampled_from(["p", "q"]))
    def open_producer(self, producer: str) -> None:
        before = self.producers.get(producer)
        identity = self.commands("open_producer", producer)
        assert before is None or identity == ProducerIdentity(before.producer_id, before.epoch + 1)
        self.producers[producer] = identity

    @rule(
        name=names,
        producer=st.sampled_from(["p", "q"]),
        sizes=sizes,
        how=st.sampled_from(["next", "next", "repeat", "gap", "stale"]),
    )
    def produce(self, name: str, producer: str, sizes: list[int], how: str) -> None:
        model, identity = self.shards.get(name), self.producers.get(producer)
        if model is None or identity is None:
            return
        fields = {"producer_id": identity.producer_id, "producer_epoch": identity.epoch}
        sending = model.sendings.get(producer)
        if how == "stale":
            with pytest.raises(StaleEpochError):
                self._append(name, sizes, 0, **{**fields, "producer_epoch": identity.epoch - 1})
            return
        if sending is None or sending.epoch != identity.epoch:
            sending = model.sendings[producer] = Sending(identity.epoch, 0)
        elif how == "gap" and not sending.lost and not sending.may_be_ahead:
            with pytest.raises(SequenceGapError):
                self._append(name, sizes, 0, **fields, sequence=sending.next_sequence + 1)
            return
        elif how == "repeat" and sending.last is not None and not sending.lost:
            last = sending.last
            first = sending.next_sequence - len(last.values)
            appended, _ = self._append(name, [0] * len(last.values), 0, **fields, sequence=first)
            assert appended.duplicate
            assert appended.base_offset == last.base
            if last.base >= model.start:
                assert appended.level is (AckLevel.MEMORY if last.in_memory else AckLevel.DURABLE)
            return
        appended, batch = self._append(name, sizes, 0, **fields, sequence=sending.next_sequence)
        self._appended(model, appended, batch)
        sending.next_sequence += len(sizes)
        sending.last, sending.lost, sending.may_be_ahead = batch, False, False

    # Reading

    def _check(self, name: str, offset: int | None = None, max_bytes: int = 1 << 20) -> None:
        model = self.shards[name]
        at = model.start if offset is None else offset
        records = model.records()

        async def read(engine: Engine) -> tuple[list[Any], int]:
            shard = engine.parts.table.by_name(name)
            assert (shard.start_offset, shard.published_offset) == (model.start, model.end)
            extent = await engine.parts.reader.read(shard, at, max_bytes)
            return read_records(b"".join(extent.buffers), start_offset=at), extent.next_offset

        while True:
            found, following = self.call(read)
            assert following > at or at == model.end
            for item in found:
                if isinstance(item, Gap):
                    assert item.first_offset == at
                    assert not any(lost in records for lost in range(at, min(item.next_offset, at + 5000)))
                    assert item.next_offset == min([o for o in records if o >= at], default=model.end)
                    at = item.next_offset
                else:
                    assert (item.offset, item.value) == (at, records.get(at))
                    at += 1
            assert at == following
            if offset is not None or at == model.end:
                return

    @rule(name=names, fraction=fractions, max_bytes=st.integers(1, 4000))
    def read(self, name: str, fraction: float, max_bytes: int) -> None:
        if model := self.shards.get(name):
            self._check(name, round(model.start + (model.end - model.start) * fraction), max_bytes)

    @rule(name=names, back_us=st.integers(-1000, 20_000))
    def find_time(self, name: str, back_us: int) -> None:
        if model := self.shards.get(name):
            wanted = self.clock.now_us() - back_us
            matching = [batch.base for batch in model.batches if batch.end > model.start and batch.newest_us >= wanted]
            assert self._find(name, Start.time(wanted)) == max(min(matching, default=model.end), model.start)

    @rule(name=names, number=st.integers(0, 50), shift=st.integers(-1, 1))
    def find_lsn(self, name: str, number: int, shift: int) -> None:
        model = self.shards.get(name)
        if model and model.batches:
            wanted = max(1, model.batches[number % len(model.batches)].lsn + shift)
            matching = [batch.base for batch in model.batches if batch.end > model.start and batch.lsn >= wanted]
            expected = max(min(matching, default=model.end), model.start)
            found = self._find(name, Start.lsn(wanted))
            if found != expected:
                # A gap that may hold records with such an lsn is shown, too, and from its beginning.
                records = model.records()
                assert model.start <= found < expected
                assert found not in records
                assert found == model.start or found - 1 in records or found in model.cuts
            lost = [batch.base for batch in model.lost if batch.base >= model.start and batch.lsn >= wanted]
            assert found <= min(lost, default=model.end)

    def _find(self, name: str, start: Start) -> int:
        async def find(engine: Engine) -> int:
            return await engine.parts.reader.find_offset(engine.parts.table.by_name(name), start)

        return self.call(find)

    # Cursors and state

    @rule(name=names, cursor=st.sampled_from(["x", "y"]), fraction=fractions, guess=guesses)
    def commit_cursor(self, name: str, cursor: str, fraction: float, guess: str) -> None:
        model = self.shards.get(name)
        if model is None:
            return
        offset = round(model.end * fraction)
        version = model.cursors.get(cursor, (0, 0))[1]
        if guess == "wrong":
            with pytest.raises(VersionConflictError):
                self.commands("commit_cursor", name, cursor, offset, version + 1)
            return
        found = self.commands("commit_cursor", name, cursor, offset, version if guess == "right" else None)
        assert found.version > version
        model.cursors[cursor] = (offset, found.version)

    @rule(name=names, cursor=st.sampled_from(["x", "y"]))
    def delete_cursor(self, name: str, cursor: str) -> None:
        if model := self.shards.get(name):
            self.commands("delete_cursor", name, cursor, None)
            model.cursors.pop(cursor, None)

    @rule(name=names)
    def list_cursors(self, name: str) -> None:
        if model := self.shards.get(name):

            async def found(engine: Engine) -> dict[str, tuple[int, int]]:
                return {one.name: (one.offset, one.version) for one in engine.list_cursors(name)}

            assert self.call(found) == model.cursors

    @rule(key=st.sampled_from([b"k", b"kk"]), guess=guesses, life_us=st.sampled_from([0, 1000]))
    def put_state(self, key: bytes, guess: str, life_us: int) -> None:
        self._expire()
        version = self.state.get(key, (b"", 0, 0))[1]
        if guess == "wrong":
            with pytest.raises(VersionConflictError):
                self.commands("put_state", key, b"", version + 1, 0)
            return
        self.number += 1
        value, expires_at_us = b"%d" % self.number, life_us and self.clock.now_us() + life_us
        stored = self.commands("put_state", key, value, version if guess == "right" else None, expires_at_us)
        assert stored.version > version
        self.state[key] = (value, stored.version, expires_at_us)

    @rule(key=st.sampled_from([b"k", b"kk"]))
    def delete_state(self, key: bytes) -> None:
        self.commands("delete_state", key, None)
        self.state.pop(key, None)

    @rule(prefix=st.sampled_from([b"", b"k", b"kk"]))
    def scan_state(self, prefix: bytes) -> None:
        self._expire()

        async def found(engine: Engine) -> dict[bytes, tuple[bytes, int, int]]:
            values, _ = await engine.scan_state(prefix, None, 100)
            return {one.key: (one.value, one.version, one.expires_at_us) for one in values}

        assert self.call(found) == {key: value for key, value in self.state.items() if key.startswith(prefix)}

    def _expire(self) -> None:
        now = self.clock.now_us()
        self.state = {key: value for key, value in self.state.items() if not 0 < value[2] <= now}

    @rule(microseconds=st.integers(1, 3000))
    def wait(self, microseconds: int) -> None:
        self.clock.advance(microseconds=microseconds)

    # What happens to the engine

    @rule(whole=st.booleans())
    def flush_or_checkpoint(self, whole: bool) -> None:
        """By the task that makes all checkpoints: two flushes at once could write a log that a third task removes."""

        async def work(engine: Engine) -> None:
            if whole:
                await engine.checkpoint()
            else:
                await engine.parts.checkpointer.flush_all(engine.parts.table.by_name(name) for name in self.shards)

        self.call(work)

    @rule()
    def restart(self) -> None:
        self._lose_memory()
        self.host.restart(None)
        self._check_all()
        self._check_files()

    @rule(how=st.integers(0, 1000))
    def crash(self, how: int) -> None:
        """The power goes off; in memory mode the offsets go on behind what was reserved."""
        self._lose_memory()
        choose = {0: everything_lost, 1: everything_survived}.get(how, random.Random(how).randrange)
        self.host.restart(choose)

        async def ends(engine: Engine) -> dict[str, int]:
            return {name: engine.parts.table.by_name(name).published_offset for name in self.shards}

        for name, end in self.call(ends).items():
            model = self.shards[name]
            assert end == model.end or (end > model.end and model.mode is Mode.MEMORY)
            if end > model.end:
                for sending in model.sendings.values():
                    sending.may_be_ahead = True
            model.cuts |= {model.end, end}
            model.end = end
        self._check_all()
        self._check_files()

    def _check_files(self) -> None:
        self.call(lambda engine: check_files(engine, self.host.files, DATA))

    def _check_all(self) -> None:
        for name in self.shards:
            self._check(name)
            self.list_cursors(name)
        self.scan_state(b"")

    def _lose_memory(self) -> None:
        for model in self.shards.values():
            lost = [batch for batch in model.batches if batch.in_memory]
            for sending in model.sendings.values():
                last = -1 if sending.last is None else sending.last.base
                sending.lost = sending.lost or (sending.last is not None and sending.last.in_memory)
                sending.may_be_ahead = sending.may_be_ahead or any(batch.base > last for batch in lost)
            model.lost += lost
            model.batches = [batch for batch in model.batches if not batch.in_memory]


@pytest.mark.slow("sequences of crashes")
def test_the_engine_does_what_the_model_says() -> None:
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.long
@pytest.mark.timeout(0)
def test_the_engine_does_what_the_model_says_for_long() -> None:
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(
            max_examples=3000,
            stateful_step_count=100,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
