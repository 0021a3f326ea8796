"""A value is made once for all who want it, and what is kept never costs more than the bound."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from journal.engine.read.shared_cache import SharedCache


class Maker:
    """Makes texts and remembers which; waits for ``go`` where it is given."""

    def __init__(self, value: str, made: list[str], go: trio.Event | None = None) -> None:
        self.value = value
        self.made = made
        self.go = go

    async def __call__(self) -> str:
        self.made.append(self.value)
        if self.go is not None:
            await self.go.wait()
        else:
            await trio.lowlevel.checkpoint()
        return self.value


async def test_many_who_want_the_same_value_have_it_made_once() -> None:
    cache: SharedCache[int, str] = SharedCache(100, len)
    made: list[str] = []
    given_out: list[str] = []
    go = trio.Event()

    async def want() -> None:
        given_out.append(await cache.get(1, Maker("one", made, go)))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(want)
        await trio.testing.wait_all_tasks_blocked()
        go.set()
    assert (made, given_out) == (["one"], ["one"] * 10)
    assert cache.get_nowait(1) == "one"


async def test_a_value_too_large_to_keep_is_still_shared_by_the_tasks_that_wait() -> None:
    cache: SharedCache[int, str] = SharedCache(2, len)
    made: list[str] = []
    go = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(cache.get, 1, Maker("long", made, go))
        await trio.testing.wait_all_tasks_blocked()
        go.set()
    assert made == ["long"]
    assert (len(cache), cache.cost) == (0, 0)


async def test_when_the_maker_gives_up_another_one_takes_over() -> None:
    cache: SharedCache[int, str] = SharedCache(100, len)
    made: list[str] = []
    found: list[str] = []
    go = trio.Event()

    async def want() -> None:
        found.append(await cache.get(1, Maker("one", made, go)))

    async with trio.open_nursery() as nursery:
        first = trio.CancelScope()

        async def give_up() -> None:
            with first:
                await cache.get(1, Maker("never", made, trio.Event()))

        nursery.start_soon(give_up)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(want)
        nursery.start_soon(want)
        await trio.testing.wait_all_tasks_blocked()
        first.cancel()
        await trio.testing.wait_all_tasks_blocked()
        go.set()
    assert (made, found) == (["never", "one"], ["one", "one"])


async def test_an_error_is_not_kept() -> None:
    cache: SharedCache[int, str] = SharedCache(100, len)

    async def fail() -> str:
        raise OSError("unreadable")

    with pytest.raises(OSError, match="unreadable"):
        await cache.get(1, fail)
    assert await cache.get(1, Maker("one", [])) == "one"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 12)), max_size=40), st.lists(st.integers(0, 5)))
def test_what_is_kept_stays_within_the_bound_and_the_oldest_goes_first(
    wanted: list[tuple[int, int]], forgotten: list[int]
) -> None:
    cache: SharedCache[int, str] = SharedCache(20, len)
    order: list[tuple[int, str]] = []

    async def run() -> None:
        for key, size in wanted:
            value = await cache.get(key, Maker("x" * size, []))
            order[:] = [each for each in order if each[0] != key] + [(key, value)]
            while sum(len(kept) for _, kept in order) > 20:
                order.pop(0)
            assert cache.cost == sum(len(kept) for _, kept in order)
            assert len(cache) == len(order)

    trio.run(run)
    for key in forgotten:
        cache.forget(key)
    assert cache.cost == sum(len(kept) for key, kept in order if key not in forgotten)
