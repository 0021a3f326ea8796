"""`journal dump` says what it can read when it is given something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from journal.cli.main import run
from shards.format.record import Record
from shards.parquet.shared_file import write_shared_files
from shards.seams.os_file_system import OsFileSystem
from shards.segments.conversion_plan import PartSource, SharedPlan
from shards.segments.log_segment import LogHeader
from tests.shards.parquet.shared_files import Appended, Log


def test_a_directory_is_answered_with_what_to_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump", str(tmp_path)]) == 1
    assert f"{tmp_path} is a directory; name a file below it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"PAR1....", "a shared file has at least"),
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


def shared_file(directory: Path) -> str:
    """A shared file with two shards, one of them in two of the three row groups."""
    logs = [
        Log("plant/a", 7, [Appended([Record(b"a%d" % number)]) for number in range(3)], base_offset=10),
        Log("plant/b", 8, [Appended([Record(b"b" * 400, key=b"k"), Record(b"c")]), Appended([Record(b"d")])]),
    ]
    files = OsFileSystem()
    directory.mkdir(exist_ok=True)
    for log in logs:
        header = LogHeader(log.shard_id, log.base_offset, log.first_us, log.name).encode()
        (directory / f"{log.shard_id}.log").write_bytes(header + log.encode())
    sources = tuple(
        PartSource(
            log_path=str(directory / f"{log.shard_id}.log"),
            name=log.name,
            shard_id=log.shard_id,
            base_offset=log.base_offset,
            next_offset=log.base_offset + sum(len(batch.records) for batch in log.batches),
            start_position=len(LogHeader(log.shard_id, log.base_offset, log.first_us, log.name).encode()),
            end_position=(directory / f"{log.shard_id}.log").stat().st_size,
        )
        for log in logs
    )
    (file,) = write_shared_files(files, SharedPlan(str(directory / "out"), 5, sources), row_group_bytes=400).files
    return file.path


def test_a_shared_file_shows_which_rows_are_of_which_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = shared_file(tmp_path)
    assert run(["dump", path]) == 0
    head, group, a, second, b, third, rest = capsys.readouterr().out.splitlines()
    assert head.startswith("shared file 0000000000000005 of 20")
    assert ", 6 records, 408 bytes of values in " in head
    assert group.startswith("byte 4: row group 0, rows 0 to 2, last lsn 11, ")
    assert a == "  row 0: shard 'plant/a' (number 7), offsets 10 to 12 (3 records)"
    assert b == "  row 3: shard 'plant/b' (number 8), offsets 0 to 1 (2 records)"
    assert "row group 1, rows 3 to 4" in second
    assert "row group 2, rows 5 to 5" in third
    assert rest == "  row 5: shard 'plant/b' (number 8), offsets 2 to 2 (1 record)"


def test_the_rows_of_one_shard_of_a_shared_file_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = shared_file(tmp_path)
    assert run(["dump", path, "--shard", "plant/b", "--records", "--json"]) == 0
    head, group, rows, *records = map(json.loads, capsys.readouterr().out.splitlines())
    assert (head["kind"], head["metadata"]["record_count"], group["row_group"]) == ("shared", 6, 1)
    assert rows == {"shard": "plant/b", "shard_id": 8, "row": 3, "first_offset": 0, "next_offset": 2}
    assert [each["offset"] for each in records if "value" in each] == [0, 1, 2]
    assert run(["dump", path, "--shard", "plant/c"]) == 1
    assert "has no records of shard 'plant/c'" in capsys.readouterr().err


def test_only_a_shared_file_has_rows_of_several_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "0.log"
    log.write_bytes(LogHeader(7, 10, 5, "plant/line").encode())
    assert run(["dump", str(log), "--shard", "plant/line"]) == 1
    assert "--shard is for Parquet files" in capsys.readouterr().err


def test_a_damaged_shared_file_is_an_error_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = shared_file(tmp_path)
    content = bytearray(Path(path).read_bytes())
    content[20] ^= 1
    Path(path).write_bytes(content)
    assert run(["dump", path]) == 1
    assert f"{path} at byte 4: row group 0 (rows 0 to 3): checksum" in capsys.readouterr().err
