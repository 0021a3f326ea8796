"""One table over a data directory: its rows, what becomes of bad payloads, of losses, and of a changed declaration."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, date, datetime
from pathlib import Path

import polars as pl
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from broker_adapter import StorageAdapter
from broker_adapter.message_headers import CLIENT, QOS
from shards.format.record import Record
from spark_export.errors import DataLossError
from spark_export.tables.errors import DeclarationChangedError, StoppingError, TableConflictError, TableError
from spark_export.tables.updater import TableUpdater
from tests.spark.stores import append, convert, trim, within
from tests.tables.declared import FIELDS, TOPIC, TYPES, declared, expected, offsets, payloads, rows, source, update


def test_rows_have_the_declared_columns_and_each_record_is_there_once(tmp_path: Path) -> None:
    table = declared(tmp_path)
    append(tmp_path / "data", TOPIC, payloads(0, 3))
    append(tmp_path / "data", "plant/2/temperature", payloads(7, 1))
    append(tmp_path / "data", "office", payloads(0, 5))
    [first] = update(table, source(tmp_path))
    assert (first.batch, first.records, first.bad_records, first.behind, first.files) == (1, 4, 0, 0, 1)
    assert update(table, source(tmp_path)) == []
    append(tmp_path / "data", TOPIC, payloads(3, 2))
    convert(tmp_path / "data", TOPIC)
    [second] = update(table, source(tmp_path))
    assert (second.batch, second.version, second.records) == (2, 2, 2)
    assert rows(table) == [
        *((TOPIC, offset, "1", offset + 0.5, None) for offset in range(5)),
        ("plant/2/temperature", 0, "2", 7.5, None),
    ]


def test_every_type_of_a_field_is_a_column_of_that_type(tmp_path: Path) -> None:
    fields = {
        "at": "time",
        "client": "client",
        "qos": "qos",
        "retain": "retain",
        "raw": "payload",
        "all": "json",
        "count": "$.count",
        "state": '$.state ?? "unknown"',
    }
    types = {"at": "timestamp", "raw": "binary", "all": "json", "count": "int"}
    table = declared(tmp_path, fields=fields, types=types)
    headers = ((CLIENT, b"sensor"), (QOS, b"1"))
    time_us = 1_772_366_400_000_005
    append(
        tmp_path / "data",
        TOPIC,
        [Record(b'{"count": 3}', headers=headers, timestamp_us=time_us), Record(b'{"count":4}')],
    )
    update(table, source(tmp_path))
    frame = pl.read_delta(table.directory)
    assert dict(frame.schema) == {
        "date": pl.Date,
        "topic": pl.String,
        "shard": pl.String,
        "shard_id": pl.Int64,
        "offset": pl.Int64,
        "append_time": pl.Datetime("us", "UTC"),
        "at": pl.Datetime("us", "UTC"),
        "client": pl.String,
        "qos": pl.Int64,
        "retain": pl.Boolean,
        "raw": pl.Binary,
        "all": pl.String,
        "count": pl.Int64,
        "state": pl.String,
        "problem": pl.String,
        "bad_payload": pl.Binary,
    }
    first, second = frame.sort("offset").to_dicts()
    assert first["at"] == datetime(2026, 3, 1, 12, 0, 0, 5, UTC)
    assert (first["client"], first["qos"], first["retain"], first["raw"]) == ("sensor", 1, False, b'{"count": 3}')
    assert (first["all"], first["count"], first["state"], first["topic"]) == ('{"count":3}', 3, "unknown", TOPIC)
    assert first["date"] == first["append_time"].date() >= date(2026, 1, 1)
    assert (second["client"], second["qos"], second["count"]) == (None, None, 4)


def test_a_bad_payload_is_a_row_with_the_reason_and_the_payload(tmp_path: Path) -> None:
    table = declared(tmp_path)
    bad = [b"{", b"{}", b'{"temperature": "warm"}', b'{"temperature": 1e999}', b"\xff", b""]
    append(tmp_path / "data", TOPIC, [*payloads(0, 1), *bad, b'{"temperature": null}'])
    [added] = update(table, source(tmp_path))
    assert (added.records, added.bad_records) == (8, len(bad))
    frame = pl.read_delta(table.directory).sort("offset")
    assert frame["bad_payload"].to_list() == [None, *bad, None]
    assert frame["line"].to_list() == ["1"] * 8
    problems = frame["problem"].to_list()
    assert problems[2:4] == [
        "the payload has nothing at $.temperature; to allow that, give a default as in $.temperature ?? null",
        "column temperature is float, which accepts numbers; the value is of type str",
    ]
    assert [problem is None for problem in problems] == [True, *[False] * len(bad), True]


def test_a_batch_has_at_most_the_declared_number_of_records_and_shards_share_it(tmp_path: Path) -> None:
    table = declared(tmp_path, max_records=10)
    append(tmp_path / "data", TOPIC, payloads(0, 25))
    append(tmp_path / "data", "plant/2", payloads(0, 2))
    added = update(table, source(tmp_path))
    assert [(batch.records, batch.behind) for batch in added] == [(10, 17), (10, 7), (7, 0)]
    assert offsets(table) == expected((TOPIC, 25), ("plant/2", 2))


def test_records_of_other_topics_in_a_shard_make_no_rows_and_are_not_read_again(tmp_path: Path) -> None:
    table = declared(tmp_path, topics=("plant/+",), shards=("folded/#",))
    records = [Record(payloads(0, 1)[0], topic=topic) for topic in ("plant/1", "office/1", "plant/2")]
    append(tmp_path / "data", "folded/1", records)
    [added] = update(table, source(tmp_path))
    assert added.records == 2
    found = pl.read_delta(table.directory).sort("offset")
    assert list(zip(found["topic"], found["offset"], found["line"], strict=True)) == [
        ("plant/1", 0, "1"),
        ("plant/2", 2, "2"),
    ]
    append(tmp_path / "data", "folded/1", [Record(b"", topic="office/1")])
    [added] = update(table, source(tmp_path))
    assert (added.records, added.files) == (0, 0)
    assert update(table, source(tmp_path)) == []


def test_records_that_were_removed_before_they_were_read_are_an_error_or_counted(tmp_path: Path) -> None:
    table = declared(tmp_path)
    for first in range(0, 40, 10):
        append(tmp_path / "data", TOPIC, payloads(first, 10))
        if not first:
            update(table, source(tmp_path))
    trim(tmp_path / "data", TOPIC, 25)
    with pytest.raises(DataLossError, match=r"is to be read from offset 10 on, but it holds offsets from 2\d up to"):
        update(table, source(tmp_path))
    assert offsets(table) == expected((TOPIC, 10))
    [added] = update(declared(tmp_path, fail_on_data_loss=False), source(tmp_path))
    assert added.records + added.skipped == 30
    assert added.skipped > 0
    assert len(offsets(table)) == 40 - added.skipped
    # The loss was accepted once, so it is none for later runs.
    append(tmp_path / "data", TOPIC, payloads(40, 1))
    assert [batch.records for batch in update(table, source(tmp_path))] == [1]


def test_a_shard_that_was_deleted_and_made_again_has_rows_of_another_id(tmp_path: Path) -> None:
    async def delete(adapter: StorageAdapter) -> None:
        await adapter.delete_shard(TOPIC)

    table = declared(tmp_path)
    append(tmp_path / "data", TOPIC, payloads(0, 2))
    update(table, source(tmp_path))
    within(tmp_path / "data", delete)
    append(tmp_path / "data", TOPIC, payloads(5, 1))
    with pytest.raises(DataLossError, match="was deleted and created again"):
        update(table, source(tmp_path))
    update(declared(tmp_path, fail_on_data_loss=False), source(tmp_path))
    found = pl.read_delta(table.directory)
    assert len(found) == len(found.unique(["shard_id", "offset"])) == 3
    assert found["shard_id"].n_unique() == 2


def test_a_declared_column_is_added_and_old_rows_have_null_in_it(tmp_path: Path) -> None:
    append(tmp_path / "data", TOPIC, [b'{"temperature": 1, "unit": "C"}'])
    update(declared(tmp_path), source(tmp_path))
    wider = declared(tmp_path, fields={"unit": "$.unit ?? null", **FIELDS})
    append(tmp_path / "data", TOPIC, [b'{"temperature": 2, "unit": "F"}'])
    update(wider, source(tmp_path))
    found = pl.read_delta(wider.directory).sort("offset")
    assert found["unit"].to_list() == [None, "F"]
    assert found["temperature"].to_list() == [1.0, 2.0]
    assert rows(wider)[1] == (TOPIC, 1, "1", 2.0, None)
    with TableUpdater(wider, source(tmp_path)) as updater:
        assert updater.state.version == 3


def test_added_topics_are_read_from_their_beginning(tmp_path: Path) -> None:
    append(tmp_path / "data", TOPIC, payloads(0, 2))
    append(tmp_path / "data", "office", payloads(0, 3))
    update(declared(tmp_path), source(tmp_path))
    update(wider := declared(tmp_path, topics=("plant/#", "office")), source(tmp_path))
    assert offsets(wider) == expected((TOPIC, 2), ("office", 3))


def test_a_refused_declaration_leaves_the_table_usable_with_the_one_that_it_has(tmp_path: Path) -> None:
    append(tmp_path / "data", TOPIC, payloads(0, 2))
    update(declared(tmp_path), source(tmp_path))
    with pytest.raises(DeclarationChangedError, match="with --rebuild readings"):
        update(declared(tmp_path, types={"temperature": "int"}), source(tmp_path))
    append(tmp_path / "data", TOPIC, payloads(2, 1))
    update(declared(tmp_path), source(tmp_path))
    assert offsets(declared(tmp_path)) == expected((TOPIC, 3))


def test_a_table_is_made_again_for_another_declaration_and_older_versions_stay_readable(tmp_path: Path) -> None:
    append(tmp_path / "data", TOPIC, [b'{"temperature": 20}'] * 5)
    before = declared(tmp_path)
    update(before, source(tmp_path))
    after = declared(tmp_path, fields={"temperature": "$.temperature"}, types={"temperature": "int"})
    [added] = update(after, source(tmp_path), rebuild=True)
    assert (added.batch, added.records) == (3, 5)
    found = pl.read_delta(after.directory)
    assert found["temperature"].to_list() == [20] * 5
    assert "line" not in found.columns
    assert pl.read_delta(after.directory, version=1)["temperature"].to_list() == [20.0] * 5
    assert update(after, source(tmp_path)) == []


def test_two_processes_do_not_keep_one_table(tmp_path: Path) -> None:
    append(tmp_path / "data", TOPIC, payloads(0, 2))
    with TableUpdater(declared(tmp_path), source(tmp_path)):
        with pytest.raises(TableConflictError, match=r"another process keeps .* up to date, only one may"):
            update(declared(tmp_path), source(tmp_path))
    assert [batch.records for batch in update(declared(tmp_path), source(tmp_path))] == [2]


def test_a_process_that_has_lost_its_lock_adds_nothing_twice(tmp_path: Path) -> None:
    """As on a network file system whose lock expires: both do the same batch, and one commit counts."""
    append(tmp_path / "data", TOPIC, payloads(0, 2))
    table = declared(tmp_path)
    with TableUpdater(table, source(tmp_path)) as first:
        (Path(table.directory) / "_journal/LOCK").unlink()
        assert len(update(table, source(tmp_path))) == 1
        with pytest.raises(TableConflictError, match="another process has added batch 1"):
            first.add_batch()
    assert offsets(table) == expected((TOPIC, 2))


def test_a_batch_that_is_to_stop_leaves_nothing_and_is_done_again(tmp_path: Path) -> None:
    append(tmp_path / "data", TOPIC, payloads(0, 2))
    table = declared(tmp_path)
    with TableUpdater(table, source(tmp_path), is_stopping=lambda: True) as updater:
        with pytest.raises(StoppingError):
            updater.add_batch()
    assert not list(Path(table.directory).rglob("*.parquet"))
    assert [batch.batch for batch in update(table, source(tmp_path))] == [1]
    assert offsets(table) == expected((TOPIC, 2))


def test_the_directory_of_another_programs_table_is_left_alone(tmp_path: Path) -> None:
    append(tmp_path / "data", TOPIC, payloads(0, 2))
    write_deltalake(str(tmp_path / "table"), pl.DataFrame({"a": [1]}).to_arrow())
    with pytest.raises(TableError, match="has a Delta table that `journal-spark tables` has not made"):
        update(declared(tmp_path), source(tmp_path))
    assert pl.read_delta(str(tmp_path / "table")).to_dicts() == [{"a": 1}]


def test_a_table_whose_columns_another_program_changed_is_refused(tmp_path: Path) -> None:
    append(tmp_path / "data", TOPIC, payloads(0, 2))
    table = declared(tmp_path)
    update(table, source(tmp_path))
    DeltaTable(table.directory).alter.add_columns(Field("added", PrimitiveType("integer")))
    append(tmp_path / "data", TOPIC, payloads(2, 1))
    with pytest.raises(TableError, match="another program has changed the columns added"):
        update(table, source(tmp_path))


def test_rows_that_another_program_deletes_stay_deleted(tmp_path: Path) -> None:
    """For example because a person asks for it; the next batch is added after that program's commit."""
    append(tmp_path / "data", TOPIC, payloads(0, 4))
    table = declared(tmp_path)
    update(table, source(tmp_path))
    append(tmp_path / "data", TOPIC, payloads(4, 1))
    with TableUpdater(table, source(tmp_path)) as updater:
        DeltaTable(table.directory).delete('"offset" = 2')
        added = updater.add_batch()
    assert added is not None
    assert added.version == 3
    assert offsets(table) == [(TOPIC, offset) for offset in (0, 1, 3, 4)]


def test_without_its_plans_a_table_is_refused_and_can_be_made_again(tmp_path: Path) -> None:
    append(tmp_path / "data", TOPIC, payloads(0, 2))
    table = declared(tmp_path)
    update(table, source(tmp_path))
    shutil.rmtree(tmp_path / "table/_journal")
    with pytest.raises(TableError, match="has no plan of batch 1, so it is unknown how far the table is"):
        update(table, source(tmp_path))
    update(table, source(tmp_path), rebuild=True)
    assert offsets(table) == expected((TOPIC, 2))


@pytest.mark.slow("makes fifty batches")
def test_progress_is_known_from_a_checkpoint_when_the_log_before_it_is_gone(tmp_path: Path) -> None:
    table = declared(tmp_path, max_records=1)
    append(tmp_path / "data", TOPIC, payloads(0, 52))
    update(table, source(tmp_path))
    log = tmp_path / "table/_delta_log"
    assert (log / "00000000000000000050.checkpoint.parquet").exists()
    for version in range(50):
        (log / f"{version:020}.json").unlink(missing_ok=True)
    assert update(table, source(tmp_path)) == []
    append(tmp_path / "data", TOPIC, payloads(52, 1))
    assert [batch.batch for batch in update(table, source(tmp_path))] == [53]
    assert offsets(table) == expected((TOPIC, 53))
    assert len(list((tmp_path / "table/_journal").glob("batch-*"))) == 1


def test_readers_leave_out_files_by_the_statistics_of_the_log(tmp_path: Path) -> None:
    table = declared(tmp_path)
    for number in range(3):
        append(tmp_path / "data", f"plant/{number}/{'x' * 300 if number == 2 else 't'}", payloads(0, 2))
        update(table, source(tmp_path))
    actions = DeltaTable(table.directory).get_add_actions(flatten=True)
    found = sorted(zip(actions.column("min.shard").to_pylist(), actions.column("max.shard").to_pylist(), strict=True))
    assert found == [("", "\U0010ffff"), ("plant/0/t", "plant/0/t"), ("plant/1/t", "plant/1/t")]
    dataset = DeltaTable(table.directory).to_pyarrow_dataset()
    for shard, *_ in rows(table):
        assert dataset.to_table(filter=pc.field("shard") == shard).num_rows == 2


def test_other_users_may_read_a_table_as_the_umask_says(tmp_path: Path) -> None:
    append(tmp_path / "data", TOPIC, payloads(0, 1))
    before = os.umask(0o022)
    try:
        update(declared(tmp_path), source(tmp_path))
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "table").rglob("*") if path.is_file()}
    assert modes == {0o644, 0o600}  # the lock is the owner's
    assert (tmp_path / "table/_journal/LOCK").stat().st_mode & 0o777 == 0o600
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "table").rglob("*") if path.is_dir()} == {0o755}


def test_the_declaration_is_stored_with_the_table(tmp_path: Path) -> None:
    append(tmp_path / "data", TOPIC, payloads(0, 1))
    table = declared(tmp_path)
    update(table, source(tmp_path))
    stored = json.loads(DeltaTable(table.directory).metadata().configuration["journal.declaration"])
    assert stored == {
        "name": "readings",
        "topics": ["plant/#"],
        "shards": [],
        "fields": {"line": ["topic[1]", "text"], "temperature": ["$.temperature", TYPES["temperature"]]},
    }
