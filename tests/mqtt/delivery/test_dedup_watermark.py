"""What is beyond a frontier comes once, however often it is offered."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.mqtt.delivery.dedup_watermark import DedupWatermark
from shards.format.record import StoredRecord


def records(*places: tuple[int, int]) -> list[StoredRecord]:
    return [StoredRecord(offset, lsn, 0) for lsn, offset in places]


def test_nothing_is_done_above_the_lsn_and_everything_below() -> None:
    watermark = DedupWatermark(5)
    run = records((4, 0), (5, 1), (6, 2), (6, 3))
    assert watermark.first_new("a", run) == 2
    assert watermark.first_new("a", run[:2]) == 2
    assert watermark.first_new("b", run[2:]) == 0


def test_a_place_in_the_middle_of_a_batch_is_distinguished() -> None:
    watermark = DedupWatermark(0)
    watermark.advance("a", (6, 2))
    assert watermark.first_new("a", records((6, 1), (6, 2), (6, 3))) == 2
    assert watermark.first_new("b", records((6, 1), (6, 2), (6, 3))) == 0


def test_a_shard_that_was_made_again_begins_anew() -> None:
    watermark = DedupWatermark(0)
    watermark.advance("a", (6, 200))
    assert watermark.first_new("a", records((9, 0))) == 0


def test_places_that_the_lsn_has_passed_are_forgotten() -> None:
    watermark = DedupWatermark(0)
    for number in range(100):
        watermark.advance(f"s{number}", (number + 1, 0))
    assert watermark.is_large
    watermark.raise_to(97)
    assert len(watermark) == 3
    assert not watermark.is_large
    watermark.raise_to(3)
    assert watermark.lsn == 97


def test_what_cannot_be_forgotten_is_not_looked_through_with_every_shard() -> None:
    watermark = DedupWatermark(0)
    passes = 0
    for number in range(10_000):
        watermark.advance(f"s{number}", (number + 1, 0))
        if watermark.is_large:
            passes += 1
            watermark.raise_to(0)
    assert passes < 15


@settings(deadline=None)
@given(st.data())
def test_overlapping_and_rewound_sources_bring_everything_once(data: st.DataObject) -> None:
    """Sources that leave nothing out from some point before the frontier on: each record is taken once, in order."""
    shards = {
        "a": records(*((2 * n + 1, n) for n in range(12))),
        "b": records(*((n // 3 * 2 + 2, n) for n in range(18))),
    }
    begin = data.draw(st.integers(0, 12))
    watermark = DedupWatermark(begin)
    cursors = [{"a": 0, "b": 0} for _ in range(3)]
    taken: dict[str, list[int]] = {"a": [], "b": []}
    furthest = {"a": 0, "b": 0}
    for _ in range(data.draw(st.integers(0, 60))):
        cursor = data.draw(st.sampled_from(cursors))
        shard = data.draw(st.sampled_from("ab"))
        if data.draw(st.integers(0, 9)) == 0:
            # It breaks off and begins again where it, or another one, was.
            cursor[shard] = min(one[shard] for one in cursors)
            continue
        end = min(len(shards[shard]), cursor[shard] + data.draw(st.integers(1, 5)))
        run = shards[shard][cursor[shard] : end]
        cursor[shard] = end
        furthest[shard] = max(furthest[shard], end)
        if run and (start := watermark.first_new(shard, run)) < len(run):
            taken[shard] += [record.offset for record in run[start:]]
            watermark.advance(shard, (run[-1].lsn, run[-1].offset))
    for shard, offsets in taken.items():
        wanted = [record.offset for record in shards[shard] if record.lsn > begin]
        assert offsets == wanted[: len(offsets)]
        assert len(offsets) == len([one for one in shards[shard][: furthest[shard]] if one.lsn > begin])
