"""Parts of the scenario that need no processes, and the command line's refusals."""

from __future__ import annotations

import pytest

from demo.__main__ import main
from demo.evidence.read_back import mode_history
from shards.model import SegmentInfo, SegmentKind, ShardConfig, ShardInfo


def segment(kind: SegmentKind, base_offset: int, next_offset: int) -> SegmentInfo:
    return SegmentInfo(kind, base_offset, next_offset, size_bytes=0, created_us=0, closed=True)


def test_the_kinds_of_the_segments_show_the_mode_history() -> None:
    segments = (
        segment(SegmentKind.MEMORY, 0, 10),
        segment(SegmentKind.MEMORY, 10, 20),
        segment(SegmentKind.LOG, 20, 30),
        segment(SegmentKind.MEMORY, 30, 30),
        segment(SegmentKind.LOG, 30, 40),
        segment(SegmentKind.MEMORY, 40, 41),
    )
    info = ShardInfo("s", 1, ShardConfig(), 0, 0, 41, 0, 0, segments)

    assert mode_history(info) == [("memory", 0), ("file", 20), ("memory", 40)]


@pytest.mark.parametrize("arguments", [["--seconds", "1"], ["--seconds", "nan"], ["--rate", "0"], ["--rate", "much"]])
def test_what_cannot_be_run_is_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)

    assert exit_info.value.code == 2
    assert arguments[0] in capsys.readouterr().err
