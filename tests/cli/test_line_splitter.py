"""Lines do not depend on the pieces in which the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line.boundary import CommandError
from journal.cli.line_splitter import LineBatcher, LineSplitter


@given(st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"\r"))), st.booleans(), st.data())
def test_any_cut_gives_the_same_lines(lines: list[bytes], ends_with_line_feed: bool, data: st.DataObject) -> None:
    stream = b"\n".join(lines) + (b"\n" if ends_with_line_feed and lines else b"")
    splitter = LineSplitter(100)
    found: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    found += splitter.finish()
    if not ends_with_line_feed and lines and not lines[-1]:
        lines = lines[:-1]
    assert found == lines


def test_an_empty_line_is_a_line() -> None:
    assert LineSplitter(10).feed(b"\n\n") == [b"", b""]


@pytest.mark.parametrize("piece", [b"x" * 11, b"x" * 11 + b"\n"])
def test_a_line_that_is_too_long_is_refused_before_its_end(piece: bytes) -> None:
    splitter = LineSplitter(10)
    splitter.feed(b"first\n")
    with pytest.raises(CommandError, match="after line 1 is longer than 10 bytes"):
        splitter.feed(piece)


@given(st.lists(st.lists(st.binary(max_size=9))), st.integers(1, 5), st.integers(1, 30))
def test_batches_keep_every_line_in_order_and_within_the_bounds(
    arrivals: list[list[bytes]], max_lines: int, max_bytes: int
) -> None:
    batcher = LineBatcher(max_lines, max_bytes)
    batches = [batch for lines in arrivals for batch in batcher.add(lines)] + batcher.rest()
    assert [line for batch in batches for line in batch] == [line for lines in arrivals for line in lines]
    for batch in batches:
        assert 0 < len(batch) <= max_lines
        assert sum(map(len, batch[:-1])) < max_bytes
    assert batcher.rest() == []
