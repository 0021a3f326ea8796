"""What shares a batch, and that joining loses, repeats and reorders nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from journal.client.append_future import AppendFuture
from journal.client.batching import AppendQueue, BatchEncoder, pending_of
from journal.client.producer_window import Entry
from shards.errors import LimitExceededError
from shards.format.batch import values
from shards.format.batch_header import BatchHeader
from shards.format.record import Record
from shards.model import ProducerIdentity

IDENTITY = ProducerIdentity(3, 2)

appends = st.builds(
    lambda payload, level, expected, join: pending_of(
        payload, ack_level=level, expected_offset=expected, may_join=join
    ),
    st.one_of(
        st.lists(st.binary(max_size=20), min_size=1, max_size=4),
        st.lists(st.builds(Record, st.binary(max_size=20)), min_size=1, max_size=4),
    ),
    st.integers(0, 2),
    st.one_of(st.none(), st.integers(0, 5)),
    st.booleans(),
)


@given(st.lists(appends, max_size=20), st.integers(1, 2000), st.integers(1, 10), st.booleans())
def test_groups_keep_order_kind_and_bounds(
    made: list[AppendFuture], max_bytes: int, max_records: int, is_busy: bool
) -> None:
    queue = AppendQueue(max_bytes, max_records)
    for pending in made:
        queue.add(pending)
    taken: list[AppendFuture] = []
    while group := queue.take(is_busy=is_busy):
        taken += group
        if len(group) > 1:
            assert all(pending.may_join and pending.expected_offset == -1 for pending in group)
            assert len({(pending.ack_level, pending.values is None) for pending in group}) == 1
            assert sum(pending.size_bytes for pending in group) <= max_bytes
            assert sum(pending.record_count for pending in group) <= max_records
    rest = queue.clear()
    assert [*taken, *rest] == made
    assert is_busy or not rest


def test_a_full_batch_does_not_wait_for_the_one_in_flight() -> None:
    queue = AppendQueue(10_000, 3)
    for number in range(3):
        queue.add(pending_of([b"%d" % number], ack_level=0, expected_offset=None, may_join=True))
        assert (len(queue.take(is_busy=True)) == 3) is (number == 2)


def test_a_group_becomes_one_batch_with_producer_fields() -> None:
    group = [pending_of([value], ack_level=0, expected_offset=None, may_join=True) for value in (b"a", b"b")]
    (entry,) = BatchEncoder(lambda: 5, max_batch_bytes=1 << 20).encode(group, IDENTITY, 77)
    assert isinstance(entry, Entry)
    header = BatchHeader.unpack(entry.batch)
    assert (header.producer_id, header.producer_epoch, header.sequence, header.record_count) == (3, 2, 77, 2)
    assert values(entry.batch) == [b"a", b"b"]


def test_an_append_that_cannot_be_encoded_spoils_no_other() -> None:
    group = [
        pending_of(payload, ack_level=0, expected_offset=None, may_join=True)
        for payload in ([b"a"], [bytes(5000)], [b"b"])
    ]
    made = list(BatchEncoder(lambda: 5, max_batch_bytes=1000).encode(group, IDENTITY, 0))
    assert [values(one.batch) for one in made if isinstance(one, Entry)] == [[b"a"], [b"b"]]
    ((spoilt, error),) = [one for one in made if not isinstance(one, Entry)]
    assert spoilt is group[1]
    assert isinstance(error, LimitExceededError)


def test_what_was_handed_over_is_the_callers_no_more() -> None:
    payload = [b"a"]
    pending = pending_of(payload, ack_level=0, expected_offset=None, may_join=True)
    payload[0] = b"changed"
    (entry,) = BatchEncoder(lambda: 5, max_batch_bytes=1 << 20).encode([pending], IDENTITY, 0)
    assert isinstance(entry, Entry)
    assert values(entry.batch) == [b"a"]
