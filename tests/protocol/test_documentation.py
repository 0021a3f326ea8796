"""docs/protocol.md says what the code does: its worked example, its tables."""

from __future__ import annotations

import re
from pathlib import Path

from journal.protocol import FrameParser, Op, encode, errors, frames
from shards.format.batch import encode_values
from tests.protocol.append_frames import build_appended

TEXT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def example_frames() -> list[bytes]:
    dumps = re.findall(r"```text layout\n((?:[0-9a-f]{4}  [0-9a-f ]+\n)+)```", TEXT)
    return [bytes.fromhex("".join(line[6:] for line in dump.splitlines())) for dump in dumps]


def test_worked_example_is_what_the_code_sends() -> None:
    batch = encode_values([b"hello"], timestamp_us=1_700_000_000_000_000, producer_id=11, producer_epoch=1, sequence=0)
    assert example_frames() == [
        frames.build(Op.HELLO, 1, encode({"version": 2, "client": "demo"})),
        frames.build(Op.OPEN_SHARD, 2, encode({"name": "a/b"})),
        frames.build(Op.PRODUCER_OPEN, 3, encode({"name": "demo-1"})),
        frames.build_append(4, 1, batch, ack_level=2),
        build_appended([(4, 2, 0, 0)]),
        frames.build_fetch(5, 1, 0, 65536, 500),
    ]


def test_worked_example_is_whole_frames() -> None:
    parser = FrameParser(1 << 16)
    parser.feed(b"".join(example_frames()))
    assert [frame.correlation for frame in parser] == [1, 2, 3, 4, 0, 5]
    assert parser.is_empty


def test_table_of_operations_is_complete() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+)(?: F)? \|", TEXT, re.MULTILINE)
    assert {int(number): name for number, name in rows} == {int(op): op.name for op in Op}


def test_table_of_errors_is_complete() -> None:
    rows = re.findall(r"^\| (\d+) \| ([a-z_]+) \| (yes|no) \|", TEXT, re.MULTILINE)
    assert {int(number): (code, retriable == "yes") for number, code, retriable in rows} == {
        number: (cls.code, cls.retriable) for cls, number in errors.ERROR_NUMBERS.items()
    }
