"""Commits against a model: each is carried out whole or refused whole, whatever else is under way."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.engine import Engine, time_slice
from journal.engine.write.transactions import Delete, Put
from shards.errors import (
    BatchError,
    InvalidRequestError,
    LimitExceededError,
    ShardNotFoundError,
    StorageError,
    VersionConflictError,
)
from shards.format.batch import encode_values, gap_batch
from shards.model import AckLevel, Mode, ShardConfig
from tests.journal.engines import config, open_simulated, stop_without_checkpoint, values_of
from tests.patience import PATIENCE_S
from tests.simulation.file_system import SimulatedFileSystem

SHARDS = {
    "file": ShardConfig(),
    "other": ShardConfig(),
    "memory": ShardConfig(mode=Mode.MEMORY),
    "indexed": ShardConfig(index_keys=True),
}
KEYS = [b"a", b"b", b"c"]
JOURNAL_FILE_BYTES = 64 * 1024


@attrs.define
class Model:
    """What shards and state must hold."""

    shards: dict[str, list[bytes]] = attrs.Factory(lambda: {name: [] for name in SHARDS})
    state: dict[bytes, tuple[bytes, int]] = attrs.Factory(dict)

    def refusal(self, commit: Commit) -> type[StorageError] | None:
        """The error that the commit must raise; any of them if several are due."""
        keys = [*(key for key, _, _ in commit.puts), *(key for key, _ in commit.deletes)]
        if not (commit.appends or keys) or len(set(keys)) < len(keys):
            return InvalidRequestError
        conditions = [*((key, expects) for key, _, expects in commit.puts), *commit.deletes]
        if any(not self.holds(key, expects) for key, expects in conditions):
            return VersionConflictError
        if any(name not in SHARDS for name, _ in commit.appends):
            return ShardNotFoundError
        return None

    def holds(self, key: bytes, expects: str) -> bool:
        return (
            expects == "any"
            or (expects == "none" and key not in self.state)
            or (expects == "current" and key in self.state)
        )

    def version(self, key: bytes, expects: str) -> int | None:
        """The version to name: none at all, that there is none, the current one, or one that never was."""
        current = self.state[key][1] if key in self.state else 1 << 40
        return {"any": None, "none": 0, "current": current, "wrong": 1 << 41}[expects]


@attrs.frozen
class Value:
    """Bytes that are shown in a few words when a test fails."""

    mark: int
    size_bytes: int

    def __bytes__(self) -> bytes:
        return b"%d." % self.mark + bytes(self.size_bytes)


@attrs.frozen
class Commit:
    """One request: values for shards, keys to set and keys to delete, each with what it expects of the version."""

    appends: list[tuple[str, list[Value]]]
    puts: list[tuple[bytes, Value, str]]
    deletes: list[tuple[bytes, str]]


def mostly(*usual: Any, seldom: str) -> st.SearchStrategy[Any]:
    return st.sampled_from([*usual * 6, seldom])


expectations = st.sampled_from(["any"] * 8 + ["none", "current", "wrong"])
values = st.builds(Value, st.integers(0, 99), st.sampled_from([0, 1, 100, 5_000]))
commits = st.builds(
    Commit,
    st.lists(st.tuples(mostly(*SHARDS, seldom="nowhere"), st.lists(values, min_size=1, max_size=3)), max_size=4),
    st.lists(st.tuples(st.sampled_from(KEYS), values, expectations), max_size=2),
    st.lists(st.tuples(st.sampled_from(KEYS), expectations), max_size=1),
)


async def make_shards(engine: Engine) -> None:
    for name, shard_config in SHARDS.items():
        await engine.create_shard(name, shard_config)


async def carry_out(engine: Engine, commit: Commit, model: Model) -> None:
    """Commit, and expect what the model says."""
    appends = [(name, encode_values(list(map(bytes, some)), timestamp_us=1)) for name, some in commit.appends]
    puts = [Put(key, bytes(value), model.version(key, expects)) for key, value, expects in commit.puts]
    deletes = [Delete(key, model.version(key, expects)) for key, expects in commit.deletes]
    refusal = model.refusal(commit)
    size_bytes = sum(len(batch) for _, batch in appends) + sum(len(put.value) for put in puts)
    try:
        appended, stored = await engine.parts.transactions.commit(appends, puts, deletes)
    except LimitExceededError:
        assert size_bytes > JOURNAL_FILE_BYTES // 2, "a small commit was refused as too large"
        return
    except StorageError as error:
        assert refusal is not None, f"refused without a reason: {error}"
        assert isinstance(error, refusal), f"{error!r} instead of {refusal}"
        return
    assert refusal is None, f"carried out, but it should raise {refusal}"
    assert [one.level for one in appended] == [
        AckLevel.MEMORY if name == "memory" else AckLevel.DURABLE for name, _ in commit.appends
    ]
    for (name, some), one in zip(commit.appends, appended, strict=True):
        assert one.base_offset == len(model.shards[name])
        model.shards[name] += map(bytes, some)
    for put, value in zip(puts, stored, strict=True):
        assert (value.key, value.value) == (put.key, put.value)
        model.state[put.key] = (put.value, value.version)
    for delete in deletes:
        model.state.pop(delete.key, None)


async def check(engine: Engine, model: Model, *, names: list[str]) -> None:
    for name in names:
        assert await values_of(engine, name) == model.shards[name]
    for key in KEYS:
        found = engine.get_state(key)
        assert (None if found is None else (found.value, found.version)) == model.state.get(key)


@settings(max_examples=60, deadline=None)
@given(history=st.lists(commits, max_size=12))
async def test_commits_are_whole_or_refused_and_survive_a_crash_so(history: list[Commit]) -> None:
    files, model = SimulatedFileSystem(), Model()
    with trio.fail_after(PATIENCE_S):
        await live(files, model, history)


async def live(files: SimulatedFileSystem, model: Model, history: list[Commit]) -> None:
    async with open_simulated(files, config(journal_file_bytes=JOURNAL_FILE_BYTES)) as engine:
        await make_shards(engine)
        for commit in history:
            await carry_out(engine, commit, model)
            await check(engine, model, names=list(SHARDS))
        stop_without_checkpoint(engine)
    async with open_simulated(files, config(journal_file_bytes=JOURNAL_FILE_BYTES)) as engine:
        await check(engine, model, names=["file", "other", "indexed"])


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 40_000), min_size=1, max_size=8), parts=st.integers(1, 3))
async def test_large_commits_at_once_are_each_in_one_write(sizes: list[int], parts: int) -> None:
    """Commits of any size collect side by side; none is spread over two groups, whose first alone could be there."""
    done: list[int] = []
    async with open_simulated(SimulatedFileSystem(), config(journal_file_bytes=JOURNAL_FILE_BYTES)) as engine:
        await make_shards(engine)
        after_group = engine.parts.subscriptions.committed

        def look_at_group(*arguments: Any) -> None:
            after_group(*arguments)
            keys = [int(value.key[2:]) for value in engine.parts.views.state.scan(b"k/", engine.now_us(), limit=100)]
            for remainder, name in enumerate(("file", "other")):
                whole = parts * sum(number % 2 == remainder for number in keys)
                assert engine.parts.table.by_name(name).published_offset == whole

        engine.parts.subscriptions.committed = look_at_group

        async def one(number: int, size_bytes: int) -> None:
            batch = encode_values([bytes(size_bytes // parts)], timestamp_us=1)
            name = "other" if number % 2 else "file"
            try:
                await engine.parts.transactions.commit([(name, batch)] * parts, [Put(b"k/%d" % number, b"")], [])
            except LimitExceededError:
                return
            done.append(number)

        async with trio.open_nursery() as nursery:
            for number, size_bytes in enumerate(sizes):
                nursery.start_soon(one, number, size_bytes)
        stored = (await engine.scan_state(b"k/", None, 100))[0]
        assert {int(value.key[2:]) for value in stored} == set(done)
        assert len(await values_of(engine, "file")) == parts * sum(number % 2 == 0 for number in done)
        assert len(await values_of(engine, "other")) == parts * sum(number % 2 for number in done)
        assert all(number in done for number, size_bytes in enumerate(sizes) if size_bytes < JOURNAL_FILE_BYTES // 4)


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (b"", BatchError),
        (b"not a batch", BatchError),
        (encode_values([b"x"], timestamp_us=1) + b"behind it", BatchError),
        (encode_values([b"x"], timestamp_us=1)[:-1], BatchError),
        (encode_values([b"x" * 50], timestamp_us=1)[:-1] + b"y", BatchError),
        (encode_values([b"x"], timestamp_us=1, producer_id=1, producer_epoch=1, sequence=0), InvalidRequestError),
        (gap_batch(0, 5, 1, 1), BatchError),
    ],
    ids=["empty", "garbage", "too long", "too short", "damaged", "with a producer", "a gap"],
)
@pytest.mark.parametrize("name", ["file", "memory"])
async def test_a_batch_that_is_none_refuses_the_whole(name: str, batch: bytes, error: type[StorageError]) -> None:
    async with open_simulated(SimulatedFileSystem()) as engine:
        await make_shards(engine)
        good = encode_values([b"good"], timestamp_us=1)
        with pytest.raises(error):
            await engine.parts.transactions.commit([("file", good), (name, batch)], [Put(b"a", b"v")], [])
        await check(engine, Model(), names=list(SHARDS))
        appended, _ = await engine.parts.transactions.commit([("file", good), ("memory", good)], [], [])
        assert [one.base_offset for one in appended] == [0, 0]


async def test_a_commit_to_thousands_of_shards_opened_all_of_them_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A COMMIT of 2,500 appends to shards that were not open held the loop for 176 ms."""
    monkeypatch.setattr(time_slice, "_STEP_S", 0.0)
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        for number in range(20):
            await engine.create_shard(f"s/{number}", ShardConfig())
    async with open_simulated(files) as engine:
        opened_before_rest = []

        async def rest(self: time_slice.TimeSlice) -> None:
            opened_before_rest.append(len(engine.parts.table.open_shards()))

        monkeypatch.setattr(time_slice.TimeSlice, "rest", rest)
        batch = encode_values([b"x"], timestamp_us=1)
        await engine.parts.transactions.commit([(f"s/{number}", batch) for number in range(20)], [], [])
        # Other tasks rest as well.
        assert set(range(1, 21)) <= set(opened_before_rest)
        assert await values_of(engine, "s/19") == [b"x"]


@pytest.mark.parametrize("meanwhile", ["deletes the shard", "changes the key"])
async def test_what_others_change_while_a_commit_is_prepared_refuses_the_whole(
    monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    monkeypatch.setattr(time_slice, "_STEP_S", 0.0)
    async with open_simulated(SimulatedFileSystem()) as engine:
        await make_shards(engine)
        rests = 0

        async def rest(self: time_slice.TimeSlice) -> None:
            nonlocal rests
            rests += 1
            if rests < 3:
                return
            if meanwhile == "deletes the shard":
                await engine.delete_shard("other")
            else:
                await engine.put_state(b"a", b"theirs", None, 0)

        batch = encode_values([b"x"], timestamp_us=1)
        appends = [("file", batch), ("other", batch)]
        with monkeypatch.context() as patch:
            patch.setattr(time_slice.TimeSlice, "rest", rest)
            with pytest.raises(StorageError):
                await engine.parts.transactions.commit(appends, [Put(b"a", b"ours", 0)], [])
        assert rests == 3
        assert await values_of(engine, "file") == []
        found = engine.get_state(b"a")
        assert (found and found.value) == (None if meanwhile == "deletes the shard" else b"theirs")
