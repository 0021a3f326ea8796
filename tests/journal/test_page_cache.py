"""The newest that was written stays in the page cache, within the bound; everything older leaves it once."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from journal.engine.segments.flusher import PageCache, WrittenRange

written = st.builds(WrittenRange, st.sampled_from(["a", "b"]), st.integers(0, 1 << 30), st.integers(1, 1 << 16))


@given(st.lists(written), st.integers(0, 1 << 18))
def test_ranges_leave_in_order_once_and_what_stays_is_within_the_bound(
    ranges: list[WrittenRange], limit_bytes: int
) -> None:
    window = PageCache(limit_bytes)
    left: list[WrittenRange] = []
    for each in ranges:
        window.add(each)
        left += window.overdue()
    assert left == ranges[: len(left)]
    assert sum(max(4096, each.size_bytes) for each in ranges[len(left) :]) <= limit_bytes
    assert window.overdue() == []


def test_nothing_leaves_before_the_bound_is_passed() -> None:
    window = PageCache(8192)
    window.add(WrittenRange("a", 0, 8000))
    assert window.overdue() == []
    window.add(WrittenRange("b", 0, 1))
    assert window.overdue() == [WrittenRange("a", 0, 8000)]
