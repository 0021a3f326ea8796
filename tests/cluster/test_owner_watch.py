"""When a follower takes the store over: `OwnerWatch` under a simulated clock, with answers that the test chooses."""

from __future__ import annotations

import random
from typing import Final

import pytest
import trio
import trio.testing

from journal.engine import Addresses, Claim, Decision
from journal.server.cluster.liveness import Life
from journal.server.cluster.takeover import GONE_S, LOOK_S, SILENT_S, OwnerWatch
from journal.settings.values import ConfigurationError

ME: Final = "aa" * 16
OTHER: Final = "bb" * 16
OF_OTHER: Final = Claim(3, OTHER, Addresses("b:7420", "b:7422"))
SPREAD_S: Final = 0.5


class Owner:
    def __init__(self, life: Life) -> None:
        self.life = life
        self.asked: list[Claim] = []

    async def ask(self, claim: Claim) -> Life:
        self.asked.append(claim)
        return self.life


def watch_of(owner: Owner, seed: int = 0) -> OwnerWatch:
    return OwnerWatch(ME, "a:7420", owner.ask, random.Random(seed))


async def seconds_until_takeover(watch: OwnerWatch, claim: Claim) -> float:
    began = trio.current_time()
    while await watch.wait(claim, has_moved=False) is not Decision.TAKE_OVER:
        pass
    return trio.current_time() - began


async def test_a_store_without_a_claim_is_taken_at_once(autojump_clock: trio.testing.MockClock) -> None:
    assert await watch_of(Owner(Life.ALIVE)).wait(Claim(), has_moved=False) is Decision.TAKE_OVER


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("life", "patience_s"), [(Life.GONE, GONE_S), (Life.SILENT, SILENT_S), (Life.WITHOUT_STORE, SILENT_S)]
)
async def test_an_owner_that_is_not_there_loses_the_store_after_some_time(
    autojump_clock: trio.testing.MockClock, life: Life, patience_s: float, seed: int
) -> None:
    taken_s = await seconds_until_takeover(watch_of(Owner(life), seed), OF_OTHER)
    assert patience_s <= taken_s <= patience_s + SPREAD_S + 0.2


async def test_an_owner_that_is_alive_keeps_the_store(autojump_clock: trio.testing.MockClock) -> None:
    owner = Owner(Life.ALIVE)
    watch = watch_of(owner)
    for _ in range(100):
        assert await watch.wait(OF_OTHER, has_moved=False) is Decision.FOLLOW
    assert trio.current_time() == pytest.approx(100 * LOOK_S)
    assert owner.asked == [OF_OTHER] * 100


@pytest.mark.parametrize("life", [Life.GONE, Life.SILENT])
async def test_an_owner_that_still_writes_keeps_the_store(autojump_clock: trio.testing.MockClock, life: Life) -> None:
    watch = watch_of(Owner(life))
    for _ in range(100):
        assert await watch.wait(OF_OTHER, has_moved=True) is Decision.LOOK


async def test_an_owner_that_answers_in_between_keeps_the_store(autojump_clock: trio.testing.MockClock) -> None:
    owner = Owner(Life.SILENT)
    watch = watch_of(owner)
    for _ in range(5):
        began = trio.current_time()
        owner.life = Life.SILENT
        while trio.current_time() - began < SILENT_S - 0.5:
            assert await watch.wait(OF_OTHER, has_moved=False) is Decision.LOOK
        owner.life = Life.ALIVE
        assert await watch.wait(OF_OTHER, has_moved=False) is Decision.FOLLOW


@pytest.mark.parametrize("life", [Life.GONE, Life.SILENT, Life.WITHOUT_STORE])
async def test_a_server_that_was_started_again_takes_its_store_back_at_once(
    autojump_clock: trio.testing.MockClock, life: Life
) -> None:
    former = Claim(3, OTHER, Addresses("a:7420", "a:7422"))
    owner, began = Owner(life), trio.current_time()
    assert await watch_of(owner).wait(former, has_moved=False) is Decision.TAKE_OVER
    assert (owner.asked, trio.current_time()) == ([former], began)


async def test_two_servers_that_tell_others_the_same_address_are_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    watch = watch_of(Owner(Life.ALIVE))
    assert await watch.wait(OF_OTHER, has_moved=False) is Decision.FOLLOW
    twin = Claim(4, "cc" * 16, Addresses("a:7420", "a:7422"))
    with pytest.raises(ConfigurationError, match=r"another server of the store has the address a:7420, too.*advertise"):
        await watch.wait(twin, has_moved=False)


async def test_the_owner_of_the_same_address_keeps_the_store_while_it_is_alive(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each of two servers that were given one address took the store from the other, and ended it, for ever."""
    twin = Claim(4, "cc" * 16, Addresses("a:7420", "a:7422"))
    with pytest.raises(ConfigurationError, match=r"another server of the store has the address a:7420, too"):
        await watch_of(Owner(Life.ALIVE)).wait(twin, has_moved=False)
