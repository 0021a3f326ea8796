"""Replies are counted in whatever pieces they come; a miscount would show a rate that the server never reached."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load import LoadError
from benchmarks.wire import AckCounter, FrameCutter
from journal.protocol import frames
from journal.protocol.frames import Op
from tests.protocol.append_frames import build_appended


@given(st.lists(st.integers(min_value=0, max_value=20), max_size=10), st.integers(min_value=1, max_value=100))
def test_acknowledgements_are_counted_in_any_pieces(groups: list[int], piece: int) -> None:
    stream = b"".join(build_appended([(0, 2, 0, 0)] * count) for count in groups)
    counter = AckCounter()
    counted = 0
    for start in range(0, len(stream), piece):
        # The buffer is longer than what was received into it, as in use.
        received = stream[start : start + piece]
        counted += counter(bytearray(received + b"\xff" * 32), len(received))
    assert counted == sum(groups)


def test_an_error_reply_under_load_is_raised() -> None:
    frame = frames.build(Op.APPEND, 7, b"refusal", status=3)
    with pytest.raises(LoadError, match="APPEND with status 3: b'refusal'"):
        AckCounter()(bytearray(frame), len(frame))


@given(st.lists(st.binary(max_size=50), max_size=10), st.integers(min_value=1, max_value=100))
def test_frames_are_cut_from_any_pieces(bodies: list[bytes], piece: int) -> None:
    whole = [frames.build(Op.PUSH, 0, body) for body in bodies]
    stream = b"".join(whole)
    cutter = FrameCutter()
    found = [frame for at in range(0, len(stream), piece) for frame in cutter.feed(stream[at : at + piece])]
    assert found == [(Op.PUSH, frame) for frame in whole]
