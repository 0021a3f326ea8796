from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from shards.segments.due_times import WIDTH_US, DueTime, DueTimes


@attrs.define(eq=False)
class Listed:
    shard_id: int
    due: DueTime | None = None


def take(times: DueTimes, shards: list[Listed], now_us: int) -> list[int]:
    """Take what is due, as a look does."""
    taken = []
    for due in times.take(now_us):
        for shard_id in due.shard_ids:
            if shards[shard_id].due is due:
                shards[shard_id].due = None
                taken.append(shard_id)
    return taken


moments = st.integers(0, 20 * WIDTH_US)
steps = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 3), moments), st.tuples(st.just("take"), st.just(0), moments)
)


@given(history=st.lists(steps, max_size=40))
def test_each_shard_is_taken_once_at_its_earliest_time_or_a_little_before(history: list[tuple[str, int, int]]) -> None:
    times, shards = DueTimes(), [Listed(number) for number in range(4)]
    earliest: dict[int, int] = {}
    for what, number, at_us in history:
        if what == "put":
            times.put(shards[number], at_us)
            earliest[number] = min(at_us, earliest.get(number, at_us))
            continue
        taken = take(times, shards, at_us)
        assert len(taken) == len(set(taken))
        assert {each for each, due_us in earliest.items() if due_us <= at_us} <= set(taken)
        assert all(earliest.pop(each) - WIDTH_US < at_us for each in taken)
    assert sorted(take(times, shards, 21 * WIDTH_US)) == sorted(earliest)


def test_a_time_that_is_put_off_again_and_again_needs_no_memory() -> None:
    times, shard = DueTimes(), Listed(0)
    for second in range(10, 10_000):
        times.put(shard, second * 1_000_000)
    (due,) = times.take(10_000_000_000)
    assert due.shard_ids == [0]


def test_lists_of_the_past_are_taken_too() -> None:
    times, shard = DueTimes(), Listed(0)
    times.put(shard, -1)
    assert take(times, [shard], 0) == [0]
    assert take(times, [shard], 1 << 60) == []
