"""The commands that a server gets over and over: as often to each stream, so that many streams are loaded evenly."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load import Chunk, chunks_of


def test_one_command_is_repeated_in_one_chunk() -> None:
    assert chunks_of([b"a"], 5) == [Chunk(b"aaaaa", 5)]


@given(st.integers(2, 300), st.integers(1, 70))
def test_each_of_several_commands_is_sent_as_often(commands: int, per_chunk: int) -> None:
    words = [b"%04d" % number for number in range(commands)]
    chunks = chunks_of(words, per_chunk)
    sent = [chunk.data[at : at + 4] for chunk in chunks for at in range(0, len(chunk.data), 4)]
    assert Counter(sent) == dict.fromkeys(words, 4)
    assert all(chunk.replies == len(chunk.data) // 4 <= per_chunk for chunk in chunks)
    assert sent[:commands] != words or commands < 9
