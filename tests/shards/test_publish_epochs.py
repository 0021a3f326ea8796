"""`PublishEpochs` leaves out no shard that has published since, and no filter that was not notified of one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shards.topics import publish_epochs
from shards.topics.publish_epochs import PublishEpoch, PublishEpochs

SHARDS = 12
ERA_SHARDS = 4
MOST_ERAS = 3


@attrs.define(eq=False)
class FakeShard:
    """A shard as `PublishEpochs` sees it, and what it has published."""

    shard_id: int
    era: PublishEpoch[Any] | None = None
    published_lsn: int = 0


@pytest.fixture(scope="module", autouse=True)
def small_eras() -> Iterator[None]:
    """Few shards in an era and few eras, so that they end and merge all the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish_epochs, "_ERA_SHARDS", ERA_SHARDS)
        patch.setattr(publish_epochs, "_MOST_ERAS", MOST_ERAS)
        yield


class Publishers(RuleBasedStateMachine):
    """Shards get lsns, publish in that order some time later, and are deleted; eras begin in between."""

    def __init__(self) -> None:
        super().__init__()
        self.next_lsn = 1
        self.shards = {number: FakeShard(number) for number in range(SHARDS)}
        self.decided: deque[tuple[FakeShard, int]] = deque()
        self.recent: PublishEpochs[FakeShard] = PublishEpochs(lambda: self.next_lsn)
        # Number of an era that was begun, and the shards that have published since.
        self.begun: list[tuple[int, set[int]]] = []

    @initialize(lsns=st.lists(st.integers(1, 30), unique=True, max_size=SHARDS))
    def load(self, lsns: list[int]) -> None:
        loaded = [self.shards[number] for number in range(len(lsns))]
        for shard, lsn in zip(loaded, lsns, strict=True):
            shard.published_lsn = lsn
        self.next_lsn = max(lsns, default=0) + 1
        self.recent.load(loaded, lambda shard: shard.published_lsn)

    @rule(number=st.integers(0, SHARDS - 1))
    def decide(self, number: int) -> None:
        self.decided.append((self.shards[number], self.next_lsn))
        self.next_lsn += 1

    @precondition(lambda self: self.decided)
    @rule(count=st.integers(1, 6))
    def publish(self, count: int) -> None:
        for _ in range(min(count, len(self.decided))):
            shard, lsn = self.decided.popleft()
            if self.shards[shard.shard_id] is not shard:
                continue
            seen_in = self.recent.newest.number if shard.era is self.recent.newest else self.recent.note(shard)
            for era, published in self.begun:
                if shard.shard_id not in published:
                    assert seen_in < era, "who began the era is not told of the shard"
                    published.add(shard.shard_id)
            shard.published_lsn = lsn
            assert shard.era is self.recent.newest

    @rule()
    def begin_era(self) -> None:
        number = self.recent.begin_era()
        assert all(number > before for before, _ in self.begun)
        self.begun.append((number, set()))

    @rule(number=st.integers(0, SHARDS - 1))
    def replace(self, number: int) -> None:
        """Delete a shard and make another under its number, which no store does; it makes mistakes show."""
        self.recent.discard(self.shards[number])
        self.shards[number] = FakeShard(number)
        for _, published in self.begun:
            published.discard(number)

    @rule(number=st.integers(0, SHARDS - 1), is_kept=st.booleans())
    def close(self, number: int, is_kept: bool) -> None:
        """Close a shard; its object is still in use, or another one is made when it is opened again."""
        shard = self.shards[number]
        self.recent.close(shard)
        if not is_kept and not any(one is shard for one, _ in self.decided):
            self.shards[number] = FakeShard(number, published_lsn=shard.published_lsn)

    @invariant()
    def every_newer_shard_is_found_once(self) -> None:
        for lsn in range(self.next_lsn + 1):
            found, closed = self.recent.newer_than(lsn), self.recent.closed_newer_than(lsn)
            ids = [shard.shard_id for shard in found] + closed
            assert len(set(ids)) == len(ids)
            wanted = [shard for shard in self.shards.values() if shard.published_lsn > lsn]
            assert all(any(shard is one for one in found) or shard.shard_id in closed for shard in wanted)
            assert all(self.shards[shard.shard_id] is shard for shard in found), "a shard that is gone was found"

    @invariant()
    def eras_are_few_and_in_order(self) -> None:
        eras = [*self.recent._ended, self.recent.newest]
        assert len(eras) <= MOST_ERAS + 1
        numbers = [era.number for era in eras]
        assert numbers == sorted(set(numbers))
        assert all(shard.era is era for era in eras for shard in era.shards.values())
        assert {shard_id: era for era in eras for shard_id in era.closed} == self.recent._closed


TestPublishers = Publishers.TestCase
TestPublishers.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_an_answer_costs_what_it_holds() -> None:
    """Who asks for what is newer than some lsn does not get the shards that were silent since long before."""
    next_lsn = 1
    recent: PublishEpochs[FakeShard] = PublishEpochs(lambda: next_lsn)
    shards = [FakeShard(number) for number in range(MOST_ERAS * ERA_SHARDS)]
    for shard in shards:
        recent.note(shard)
        shard.published_lsn = next_lsn
        next_lsn += 1
    recent.begin_era()
    assert recent.newer_than(next_lsn - 1) == []
    last = shards[-ERA_SHARDS:]
    assert sorted(shard.shard_id for shard in recent.newer_than(last[0].published_lsn)) == [
        shard.shard_id for shard in last
    ]


@given(order=st.permutations(range(SHARDS)))
def test_shards_of_a_store_are_found_by_what_they_published_last(order: list[int]) -> None:
    shards = [FakeShard(number, published_lsn=10 * lsn + 10) for number, lsn in enumerate(order)]
    recent: PublishEpochs[FakeShard] = PublishEpochs(lambda: 1000)
    recent.load(shards, lambda shard: shard.published_lsn)
    for lsn in range(0, 10 * SHARDS + 20, 5):
        found = recent.newer_than(lsn)
        newer = [shard for shard in shards if shard.published_lsn > lsn]
        assert {shard.shard_id for shard in newer} <= {shard.shard_id for shard in found}
        assert len(found) <= len(newer) + ERA_SHARDS - 1


def test_of_two_eras_that_become_one_nobody_who_began_the_second_is_forgotten() -> None:
    """Its shards may have published in the first, before that: they are reported as if all had."""
    next_lsn = 1
    recent: PublishEpochs[FakeShard] = PublishEpochs(lambda: next_lsn)
    shards = [FakeShard(number) for number in range(MOST_ERAS + 1)]
    began = []
    for shard in shards:
        recent.note(shard)
        next_lsn += 1
        began.append(recent.begin_era())
    assert len(recent._ended) == MOST_ERAS
    for shard, era in zip(shards, began, strict=True):
        assert recent.note(shard) < era
