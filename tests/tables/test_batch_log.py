"""The files of planned batches: their form, and that one that is there is never replaced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shards.history import HistoryGap
from shards.seams.os_file_system import OsFileSystem
from spark_export.errors import UnreadableError
from spark_export.positions import Position, StreamPosition
from spark_export.tables.batch_log import BatchLog, PlannedBatch
from spark_export.tables.errors import TableConflictError

START = StreamPosition({"plant/1": Position(17, 42)})
END = StreamPosition({"plant/1": Position(17, 70, 30)}, restores=(HistoryGap(88, 1099),))
GOLDEN = (
    b'{"version":1,"batch":12,"begins_anew":false,"start":{"version":2,"shards":{"plant/1":"17:42"}},'
    b'"end":{"version":2,"shards":{"plant/1":"17:70:30"},"restores":[[88,1099]]}}'
)
BATCH = PlannedBatch(12, START, END)


@pytest.fixture
def log(tmp_path: Path) -> BatchLog:
    log = BatchLog(OsFileSystem(), str(tmp_path))
    log.make()
    return log


def test_the_file_of_a_batch_has_its_documented_form(log: BatchLog, tmp_path: Path) -> None:
    log.put(BATCH)
    assert (tmp_path / "_journal/batch-00000012.json").read_bytes() == GOLDEN
    assert log.read(12) == BATCH
    assert log.read(13) is None


def test_a_planned_batch_is_not_replaced(log: BatchLog, tmp_path: Path) -> None:
    log.put(BATCH)
    with pytest.raises(TableConflictError, match="was written by another process; only one may keep a table"):
        log.put(PlannedBatch(12, START, START))
    assert log.read(12) == BATCH
    assert [file.name for file in (tmp_path / "_journal").iterdir()] == ["batch-00000012.json"]


def test_files_before_the_last_batch_and_unfinished_ones_are_removed(log: BatchLog, tmp_path: Path) -> None:
    for number in (11, 12, 13):
        log.put(PlannedBatch(number, START, END))
    (tmp_path / "_journal/writing-0a1b2c3d.tmp").touch()
    log.tidy(12)
    names = sorted(file.name for file in (tmp_path / "_journal").iterdir())
    assert names == ["batch-00000012.json", "batch-00000013.json"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is not the plan of a batch"),
        (b"[]", "is not the plan of a batch"),
        (GOLDEN[:-1], "is not the plan of a batch"),
        (GOLDEN.replace(b"17:42", b"x"), "holds no position"),
        (GOLDEN.replace(b'{"version":1', b'{"version":2'), "has version 2, this program knows version 1"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_with_its_name(
    log: BatchLog, tmp_path: Path, content: bytes, told: str
) -> None:
    file = tmp_path / "_journal/batch-00000012.json"
    file.write_bytes(content)
    with pytest.raises(UnreadableError, match=re.escape(told)):
        log.read(12)
