"""`journal dump` says what it can read when it is given something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from journal.cli.main import run
from shards.format.batch import encode
from shards.format.record import Record
from shards.seams.os_file_system import OsFileSystem
from shards.segments.chunks import ChunkPool
from shards.segments.log_segment import LogHeader, LogSegment
from tests.journal.sealed import convert_segment
from tests.shards.batches import NOW_US, stamped


def test_a_directory_is_answered_with_what_to_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump", str(tmp_path)]) == 1
    assert f"{tmp_path} is a directory; name a file below it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"PAR1....", "a sealed segment has at least"),
        (b"PAR1".ljust(100, b"."), "expected magic b'PAR1'"),
        (b"x", "begins with b'x': log, journal and Parquet files begin with JLOG, JRNL, PAR1"),
    ],
)
def test_a_file_of_another_kind_is_refused(
    content: bytes, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert run(["dump", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(path) in error
    assert told in error


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump", "/nowhere/file"]) == 1
    assert capsys.readouterr().err == "journal: /nowhere/file: No such file or directory\n"


def sealed_file(directory: Path) -> str:
    """A sealed segment with two batches."""
    segment = LogSegment(str(directory / "0.log"), LogHeader(7, 10, 5, "plant/line"), ChunkPool(0))
    for lsn, base in ((3, 10), (4, 12)):
        records = [Record(b"value %d" % (base + number), key=b"k", tags=("t",)) for number in range(2)]
        batch = stamped(encode(records, now_us=NOW_US), base, lsn)
        segment.append(batch, base + 2, lsn, NOW_US, NOW_US)
    plan = segment.plan_flush(segment.end, segment.next_offset)
    files = OsFileSystem()
    log = files.open(segment.path, create=True)
    plan.write(log, lambda: files.open(segment.index_path, create=True))
    log.close()
    return convert_segment(files, segment, str(directory / "sealed")).path


def test_a_sealed_segment_shows_its_metadata_row_groups_and_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sealed_file(tmp_path)
    assert run(["dump", path]) == 0
    head, group = capsys.readouterr().out.splitlines()
    assert "sealed segment of shard 'plant/line' (number 7), offsets 10 to 13, 32 bytes of values" in head
    assert group.startswith("byte 4: row group 0, offsets 10 to 13 (4 records), last lsn 4, ")
    assert run(["dump", path, "--records", "--json"]) == 0
    head, group, *records = map(json.loads, capsys.readouterr().out.splitlines())
    assert (head["kind"], head["metadata"]["shard"], head["metadata"]["next_offset"]) == ("sealed", "plant/line", 14)
    assert (group["row_group"], group["position"], group["first_offset"]) == (0, 4, 10)
    assert [(each["offset"], each["lsn"], each["value"], each["key"], each["tags"]) for each in records] == [
        (10 + number, 3 + number // 2, f"value {10 + number}", "k", ["t"]) for number in range(4)
    ]


def test_a_damaged_sealed_segment_is_an_error_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sealed_file(tmp_path)
    content = bytearray(Path(path).read_bytes())
    content[20] ^= 1
    Path(path).write_bytes(content)
    assert run(["dump", path]) == 1
    error = capsys.readouterr().err
    assert f"{path} at byte 4: row group 0 (offsets 10 to 14): checksum" in error
