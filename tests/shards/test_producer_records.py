"""States of producers are written when they changed and not otherwise, and one that may return is never forgotten."""

from __future__ import annotations

import pytest

from shards.idempotence.producer_state import ProducerState
from shards.seams.store import Family, Mutations
from shards.segments.shard import Shard
from shards.views import producer_records
from shards.views.producer_records import load_producers, save_changed
from tests.shards.shard_workload import ShardWorkload, Step


def with_records() -> ShardWorkload:
    workload = ShardWorkload()
    workload.run([Step("append", 6), Step("publish", 0), Step("flush", 0)])
    workload.shard.producers = {}
    return workload


def stored(workload: ShardWorkload) -> dict[int, ProducerState]:
    shard = workload.shard
    return load_producers(workload.store, Shard(shard.shard_id, shard.name, shard.config, 0))


def add(workload: ShardWorkload, producer_id: int, offset: int) -> None:
    assert workload.shard.producers is not None
    state = workload.shard.producers[producer_id] = ProducerState(1, 0)
    state.accept(0, offset, 1)


def test_what_is_loaded_is_what_was_saved() -> None:
    workload = with_records()
    state = ProducerState(3, 10)
    state.accept(10, 0, 5)
    workload.shard.producers = {2**63: state, 5: ProducerState(1, 0)}
    workload.save()
    assert stored(workload) == workload.shard.producers
    assert {each.saved_sequence for each in stored(workload).values()} == {15, 0}


def test_a_checkpoint_wrote_every_producer_of_a_dirty_shard() -> None:
    """100 shards of 1,000 producers held the loop for 430 ms in each checkpoint, even if one producer had appended."""
    workload = with_records()
    for producer_id in range(5):
        add(workload, producer_id, producer_id)
    workload.save()
    assert workload.shard.producers is not None
    workload.shard.producers[3].accept(1, 5, 1)
    mutations = Mutations()
    looked_at = sum(1 for _ in save_changed(mutations, workload.shard, 7, lambda _: False))
    assert looked_at == 5
    assert len(mutations) == 1


def test_what_is_not_safe_is_saved_again_when_it_is() -> None:
    workload = with_records()
    add(workload, 1, 0)
    assert workload.shard.producers is not None
    state = workload.shard.producers[1]
    state.accept(1, 1, 9)
    mutations = Mutations()
    list(save_changed(mutations, workload.shard, 7, lambda _: False))
    assert state.saved_sequence == 7
    list(save_changed(mutations, workload.shard, 10, lambda _: False))
    workload.store.write(mutations)
    assert stored(workload) == {1: state}


def test_a_producer_that_may_return_was_forgotten_after_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer still in use was forgotten after 4,096 others and a checkpoint, and its resend stored twice."""
    monkeypatch.setattr(producer_records, "PRODUCERS_REMEMBERED", 3)
    workload = with_records()
    workload.used = {5}
    for place, producer_id in enumerate((5, 9, 7, 8, 6)):
        add(workload, producer_id, place)
    workload.save()
    assert workload.shard.producers is not None
    assert set(workload.shard.producers) == set(stored(workload)) == {5, 7, 8, 6}
    assert workload.shard.has_forgotten_producers
    loaded = Shard(workload.shard.shard_id, "plant/line", workload.shard.config, 0)
    load_producers(workload.store, loaded)
    assert loaded.has_forgotten_producers


def test_one_that_comes_back_while_others_are_forgotten_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_records, "PRODUCERS_REMEMBERED", 1)
    workload = with_records()
    for place, producer_id in enumerate((5, 9, 7)):
        add(workload, producer_id, place)
    for number, _ in enumerate(save_changed(Mutations(), workload.shard, 7, lambda each: each in workload.used)):
        if number == 0:
            workload.used = {9}
    assert workload.shard.producers is not None
    assert set(workload.shard.producers) == {9, 7}


def test_the_states_are_in_the_family_of_producers() -> None:
    workload = with_records()
    add(workload, 1, 0)
    workload.save()
    assert [key[:1] for key, _ in workload.store.scan(Family.PRODUCERS)] == [b"s"]
