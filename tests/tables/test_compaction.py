"""Merging of small files and removal of old ones: the rows stay, and streams over the table do not see them again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from shards.seams.clock import ManualClock, SystemClock
from spark_export.tables.errors import StoppingError, TableError
from spark_export.tables.updater import TableUpdater
from tests.spark.stores import append
from tests.tables.declared import FIELDS, TOPIC, declared, expected, offsets, payloads, source, update

DAY_US = 86_400_000_000


def with_small_files(place: Path) -> None:
    append(place / "data", TOPIC, payloads(0, 8))
    update(declared(place, max_records=1), source(place))
    assert len(list((place / "table").rglob("*.parquet"))) == 8


def test_merged_files_have_all_rows_and_no_change_of_data(tmp_path: Path) -> None:
    with_small_files(tmp_path)
    # A column that was added meanwhile is null in the rows of files that lack it.
    table = declared(tmp_path, fields={**FIELDS, "unit": "$.unit ?? null"})
    with TableUpdater(table, source(tmp_path)) as updater:
        merged = updater.merge_files()
        assert merged is not None
        assert (merged.merged_files, merged.files, merged.records) == (8, 1, 8)
        assert updater.merge_files() is None
    assert offsets(table) == expected((TOPIC, 8))
    found = DeltaTable(table.directory)
    assert len(found.get_add_actions()) == 1
    assert found.to_pyarrow_table().column("unit").null_count == 8
    log = tmp_path / f"table/_delta_log/{merged.version:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    assert [kind for action in actions for kind in action] == ["commitInfo", *["remove"] * 8, "add"]
    assert not any(action[kind]["dataChange"] for action in actions for kind in action if kind != "commitInfo")
    append(tmp_path / "data", TOPIC, payloads(8, 1))
    assert [batch.batch for batch in update(table, source(tmp_path))] == [9]
    assert offsets(table) == expected((TOPIC, 9))


def test_files_are_removed_a_day_after_the_table_has_them_no_more(tmp_path: Path) -> None:
    with_small_files(tmp_path)
    table = declared(tmp_path)
    with TableUpdater(table, source(tmp_path)) as updater:
        updater.merge_files()
        assert updater.remove_old_files() == 0
    append(tmp_path / "data", TOPIC, payloads(8, 8))
    two_days_ago = ManualClock(SystemClock().now_us() - 2 * DAY_US)
    with TableUpdater(declared(tmp_path, max_records=1), source(tmp_path), clock=two_days_ago) as updater:
        while updater.add_batch() is not None:
            pass
        assert updater.merge_files() is not None
        # Those that the first merge replaced are not old enough; the file that it made was merged again.
        assert updater.remove_old_files() == 9
    assert len(list((tmp_path / "table").rglob("*.parquet"))) == 1 + 8
    assert offsets(table) == expected((TOPIC, 16))


def test_a_merge_that_is_to_stop_or_meets_damage_leaves_the_files(tmp_path: Path) -> None:
    with_small_files(tmp_path)
    table = declared(tmp_path)
    with TableUpdater(table, source(tmp_path), is_stopping=lambda: True) as updater:
        with pytest.raises(StoppingError):
            updater.merge_files()
    damaged = min((tmp_path / "table").rglob("*.parquet"))
    content = damaged.read_bytes()
    damaged.write_bytes(content[: len(content) // 2])
    with TableUpdater(table, source(tmp_path)) as updater:
        with pytest.raises(TableError, match=f"{damaged.name} cannot be read"):
            updater.merge_files()
    damaged.write_bytes(content)
    assert len(list((tmp_path / "table").rglob("*.parquet"))) == 8
    assert offsets(table) == expected((TOPIC, 8))


def test_a_merge_gives_way_to_another_program_that_has_removed_rows(tmp_path: Path) -> None:
    with_small_files(tmp_path)
    table = declared(tmp_path)
    with TableUpdater(table, source(tmp_path)) as updater:
        DeltaTable(table.directory).delete('"offset" = 2')
        assert updater.merge_files() is None
        append(tmp_path / "data", TOPIC, payloads(8, 1))
        assert updater.add_batch() is not None
        assert updater.merge_files() is not None
    assert offsets(table) == [(TOPIC, offset) for offset in range(9) if offset != 2]
