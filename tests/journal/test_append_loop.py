"""The loop that appends frames: both of its forms do the same, whatever comes, and what fails was never done."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from journal.engine.write.append_loop import make_append_loop
from shards import compiled
from shards.format.batch import BatchHeader, Codec, encode_values
from shards.segments.shard import Shard
from tests.journal.append_worlds import (
    FAULTS,
    FAULTY_VALUES,
    FIRST_LSN,
    PRODUCERS,
    FramePlan,
    Plan,
    ShardPlan,
    World,
    compiled_loop,
    plans,
    pure_loop,
)
from tests.shards.batches import NOW_US

needs_compiled = pytest.mark.skipif(compiled.append_loop_type is None, reason=f"loops are {compiled.DESCRIPTION}")


@needs_compiled
@given(plan=plans)
@example(Plan(frames=(FramePlan(),) * 200))
@example(Plan(shards=(ShardPlan(runs=66, next_offset=2**40, published=2**41),), frames=(FramePlan(producer=100),) * 70))
@example(Plan(shards=(ShardPlan(next_offset=2**40, longer=2**31 - 4),), frames=(FramePlan(producer=100),) * 9))
@example(Plan(frames=tuple(FramePlan(producer=PRODUCERS[number // 70 % 2]) for number in range(560))))
@example(Plan(frames=(FramePlan(), FramePlan(sizes=(100,))), max_frame_bytes=200))
@example(Plan(shards=(ShardPlan(interval_bytes=0),), frames=(FramePlan(sizes=(1000,)),) * 100))
def test_both_forms_do_the_same(plan: Plan) -> None:
    """Position, acknowledgements, lsns, received bytes, and all of shards, segments and producers, after each call."""
    pure, quick = World(plan, pure_loop), World(plan, compiled_loop)
    states = pure.run_all()
    event(f"{min(len(pure.acks) // 16, 8)} frames, {min(len(states), 4)} calls")
    assert quick.run_all() == states


@needs_compiled
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("fault", FAULTS)
def test_both_forms_end_at_the_same_wrong_frames(fault: str, codec: Codec) -> None:
    """Each field with each of some values, most of which are just within or just beyond what is allowed."""
    # A body with padding is not plain, whatever else is in the frame.
    sizes = next((64, size) for size in range(64, 512) if _body_size_of((64, size), codec) % 8 == 0)
    for value in FAULTY_VALUES:
        wrong = FramePlan(fault=fault, at=value, codec=codec, producer=100, sizes=sizes)
        plan = Plan(frames=(FramePlan(producer=100), wrong, FramePlan(producer=100)))
        assert World(plan, compiled_loop).run_all() == World(plan, pure_loop).run_all(), value


def _body_size_of(sizes: tuple[int, ...], codec: Codec) -> int:
    header = BatchHeader.unpack(encode_values([bytes(size) for size in sizes], timestamp_us=NOW_US, codec=codec))
    assert header.codec == codec
    return header.body_size


@needs_compiled
@pytest.mark.parametrize("bad_producer", ["none", "owner", "epoch", "unknown"])
def test_both_forms_leave_frames_of_fenced_producers_to_the_caller(bad_producer: str) -> None:
    frames = tuple(FramePlan(producer=producer) for producer in (0, *PRODUCERS, 0))
    plan = Plan(frames=frames, bad_producer=bad_producer)
    pure, quick = World(plan, pure_loop), World(plan, compiled_loop)
    assert quick.run_all() == pure.run_all()
    assert (len(quick.acks) == 5 * 16) == (bad_producer == "none")


@needs_compiled
def test_frames_of_two_producers_in_turns_are_appended_in_one_call() -> None:
    """Each frame begins a run of its producer, and the oldest runs are forgotten."""
    frames = tuple(FramePlan(producer=PRODUCERS[number % 2]) for number in range(300))
    plan = Plan(shards=(ShardPlan(next_offset=2**40, published=2**41, limit_bytes=1 << 20),), frames=frames)
    pure, quick = World(plan, pure_loop), World(plan, compiled_loop)
    assert quick.run() == pure.run() == len(pure.buffer)
    assert quick.state() == pure.state()
    (shard,) = quick.shards
    assert shard.producers is not None
    assert len(shard.producers[PRODUCERS[0]].runs) == 64


@needs_compiled
@pytest.mark.parametrize("forms", [(pure_loop, compiled_loop), (compiled_loop, pure_loop)])
def test_one_form_goes_on_where_the_other_ended(forms: tuple[object, object]) -> None:
    plan = Plan(frames=tuple(FramePlan(producer=PRODUCERS[number // 10 % 2], sizes=(100,)) for number in range(100)))
    alone, both = World(plan, pure_loop), World(plan, pure_loop)
    alone.run()
    for number in range(0, 100, 7):
        loop = forms[number % 2](both.epochs, both.owners, plan.max_frame_bytes)
        loop.next_lsn, both.loop = both.loop.next_lsn, loop
        both.run(both.starts[number], both.starts[min(number + 7, 100)])
    assert both.state() == alone.state()


ODD = [None, True, "text", 1.5, -1, 2**70, b"", (), []]
ATTRIBUTES = {
    "shard": [
        "damage", "group_number", "in_memory_mode", "indexed", "next_offset", "pending_groups", "producers",
        "segment_limit_bytes", "segments", "shard_id",
    ],
    "segment": ["chunks", "closed", "indexed_end", "newest_us"],
    "chunks": ["capacity", "chunks", "end", "fill"],
    "producer": ["epoch", "next_sequence", "runs"],
}  # fmt: skip


@needs_compiled
@pytest.mark.parametrize(("of", "name"), [(of, name) for of, names in ATTRIBUTES.items() for name in names])
@pytest.mark.parametrize("odd", [*ODD, "deleted"], ids=repr)
def test_a_frame_for_an_object_with_an_odd_attribute_is_left_to_the_caller(of: str, name: str, odd: object) -> None:
    """Nothing of it is appended, and nothing is raised; frames before it are appended."""
    frames = (FramePlan(), FramePlan(handle=1, producer=100))
    plan = Plan(shards=(ShardPlan(filled=1), ShardPlan(filled=1)), frames=frames)
    world = World(plan, compiled_loop)
    shard = world.shards[1]
    segment = shard.segments[-1]
    assert shard.producers is not None
    owner = {"shard": shard, "segment": segment, "chunks": segment.chunks, "producer": shard.producers[100]}[of]
    before = getattr(owner, name)
    if type(odd) is type(before) or (name == "group_number" and odd == -1) or odd == before:
        pytest.skip("nothing odd about that")
    if odd == "deleted":
        delattr(owner, name)
    else:
        setattr(owner, name, odd)
    assert world.run() == world.starts[1]
    assert world.loop.next_lsn == FIRST_LSN + 1
    assert len(world.acks) == 16
    if odd == "deleted":
        assert not hasattr(owner, name)
    else:
        assert getattr(owner, name) is odd
    setattr(owner, name, before)
    assert world.run(world.starts[1]) == len(world.buffer)


class _OtherShard(Shard):
    """A class with places of its own for what the loop reads."""

    __slots__ = ("next_offset",)


@needs_compiled
def test_a_shard_of_another_class_is_left_to_the_caller() -> None:
    world = World(Plan(frames=(FramePlan(),)), compiled_loop)
    world.handles = [_OtherShard(1, "other", world.shards[0].config, NOW_US)]
    assert world.run() == 0
    world.handles = ["no shard"]
    assert world.run() == 0


@needs_compiled
def test_classes_without_the_slots_are_refused() -> None:
    class Other:
        next_offset = 0

    assert compiled.append_loop_type is not None
    with pytest.raises((TypeError, AttributeError)):
        compiled.append_loop_type({}, {}, 100, Other, Other, Other, Other)


class _RefusedError(Exception):
    """What fails in Python code that the loop calls."""


@pytest.mark.parametrize("make", [pure_loop, pytest.param(compiled_loop, marks=needs_compiled)])
@pytest.mark.parametrize("what", ["add_chunk", "add_to_index"])
def test_what_was_appended_before_an_exception_stays_and_is_acknowledged(
    make: object, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(
        shards=(ShardPlan(), ShardPlan(interval_bytes=0)), frames=(FramePlan(), FramePlan(), FramePlan(handle=1))
    )
    world, whole = World(plan, make), World(plan, pure_loop)

    def fail(*_: object) -> None:
        raise _RefusedError

    whole.run(0, whole.starts[2])
    segment = world.shards[1].segments[-1]
    calls = _calls_of(what, monkeypatch, segment, fail)
    with pytest.raises(_RefusedError):
        world.run()
    assert next(calls)
    assert world.appended() == whole.appended()


def _calls_of(what: str, monkeypatch: pytest.MonkeyPatch, segment: object, fail: object) -> Iterator[bool]:
    """Have a method fail for one segment; afterwards, yields that it is so."""
    owner = type(segment) if what == "add_to_index" else type(segment.chunks)
    target = segment if what == "add_to_index" else segment.chunks
    method = getattr(owner, what)

    def replaced(self: object, argument: int) -> None:
        if self is target:
            fail()
        method(self, argument)

    monkeypatch.setattr(owner, what, replaced)
    return iter([True])


@needs_compiled
@given(plan=plans, failing=st.integers(1, 40))
def test_what_there_was_no_memory_for_was_not_appended(plan: Plan, failing: int) -> None:
    """One request for memory fails, at any place: as much was appended and acknowledged as the position says."""
    testcapi = pytest.importorskip("_testcapi", reason="this Python lacks its own test module")
    world = World(plan, compiled_loop)
    end = len(world.buffer)
    loop, view, handles, group = world.loop, world.view, world.handles, world.group
    run, room = loop.run, plan.room_bytes
    loop.position = 0
    failed = False
    testcapi.set_nomemory(failing, failing + 1)
    try:
        run(view, end, handles, 7, group, room, NOW_US + 1)
    except MemoryError:
        failed = True
    finally:
        testcapi.remove_mem_hooks()
    world.acks = bytes(loop.acks)
    event(f"failed: {failed}")
    whole = World(plan, pure_loop)
    whole.run(0, loop.position)
    whole.loop.position = loop.position
    assert _without_runs_forgotten(world) == _without_runs_forgotten(whole)
    if not failed:
        assert world.state() == whole.state() or plan.room_bytes < end


def _without_runs_forgotten(world: World) -> object:
    """What was appended; of runs, how far they go: the oldest may be forgotten for a frame that failed afterwards."""
    for shard in world.shards:
        for state in (shard.producers or {}).values():
            state.forgotten = None
            del state.runs[:-60]
    return world.appended()


@needs_compiled
def test_nothing_is_held_after_a_call() -> None:
    """No reference to shards, segments, buffers or frames, and no memory that grows."""
    frames = tuple(
        FramePlan(handle=number % 3, producer=PRODUCERS[number % 4] if number % 4 < 3 else 0) for number in range(50)
    )
    shards = (ShardPlan(), ShardPlan(kind="closed"), ShardPlan(interval_bytes=0))
    world = World(Plan(shards=shards, frames=frames), compiled_loop)
    held = [world.group.touched, world.handles, world.epochs, world.owners, world.view, *world.shards]
    held += [
        part for shard in world.shards for part in (shard.segments[-1], shard.segments[-1].chunks, shard.producers)
    ]
    counts = [sys.getrefcount(each) for each in held]
    world.run_all()
    world.group.touched.clear()
    assert [sys.getrefcount(each) for each in held] == counts
    world.view.release()
    world.buffer.clear()
    for _ in range(3):
        _append_again()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(20):
        _append_again()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 4096


def _append_again() -> None:
    world = World(Plan(frames=tuple(FramePlan(producer=100) for _ in range(100))), compiled_loop)
    assert world.run() == len(world.buffer)


@needs_compiled
@pytest.mark.parametrize(
    ("view", "position", "end"),
    [
        (memoryview(bytearray(200)), 0, 201),
        (memoryview(bytearray(200)), -1, 100),
        (memoryview(bytearray(200)), 150, 100),
    ],
)
def test_positions_outside_of_the_view_are_refused(view: memoryview, position: int, end: int) -> None:
    world = World(Plan(), compiled_loop)
    world.loop.position = position
    with pytest.raises(ValueError, match="in the view"):
        world.loop.run(view, end, [], 1, world.group, 1000, NOW_US)


@needs_compiled
def test_bytes_that_cannot_be_changed_are_refused() -> None:
    world = World(Plan(), compiled_loop)
    with pytest.raises(BufferError):
        world.loop.run(memoryview(bytes(200)), 200, [], 1, world.group, 1000, NOW_US)


@needs_compiled
def test_the_compiled_form_is_used_where_there_is_one() -> None:
    assert compiled.append_loop_type is not None
    assert type(make_append_loop({}, {}, 100)) is compiled.append_loop_type
