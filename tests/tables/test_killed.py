"""A run that is killed with SIGKILL before any step that changes a file: each record is in the table once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shards.format.record import Record
from tests.spark.sealed_trees import SealedTree
from tests.tables.declared import TOPIC, declared, expected, offsets, payloads, tree, update
from tests.tables.killed_updates import KilledUpdates

COUNT = 7


def records(first: int, count: int) -> list[Record]:
    return [Record(payload) for payload in payloads(first, count)]


def history_in(place: Path) -> SealedTree:
    (place / "data").mkdir()
    return SealedTree(place / "data")


def prepared(place: Path) -> None:
    """A table with one batch for each of seven records, and two more records: then a batch and a merge are due."""
    history = history_in(place)
    history.convert(TOPIC, records(0, COUNT))
    update(declared(place, max_records=1), tree(place))
    history.convert(TOPIC, records(COUNT, 1))
    history.convert("plant/2", records(0, 1))


def killed_at(updates: KilledUpdates, place: Path, step: int, **changes: Any) -> str:
    """A copy of the prepared table after a run that was killed."""
    shutil.rmtree(place / "table", ignore_errors=True)
    shutil.copytree(place / "prepared", place / "table")
    return updates.run(place, step, **changes)


def require_once(place: Path, **changes: Any) -> None:
    table = declared(place, **changes)
    update(table, tree(place))
    assert offsets(table) == expected((TOPIC, COUNT + 1), ("plant/2", 1))


@pytest.mark.timeout(900)
@pytest.mark.slow("kills a process at each step")
def test_a_run_that_is_killed_at_any_step_misses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    prepared(tmp_path)
    (tmp_path / "table").rename(tmp_path / "prepared")
    seen = []
    with KilledUpdates() as updates:
        while (step := killed_at(updates, tmp_path, len(seen) + 1)) != "done":
            seen.append(step.replace(str(tmp_path), ""))
            before = offsets(declared(tmp_path))
            assert len(before) == len(set(before)) >= COUNT, step
            require_once(tmp_path)
    assert {"open", "pwritev", "fsync", "link", "remove", "sync_directory"} == {step.partition(" ")[0] for step in seen}
    assert any("link" in step and "_delta_log" in step for step in seen)


@pytest.mark.timeout(900)
@pytest.mark.slow("kills a process at each step")
def test_a_rebuild_that_is_killed_at_any_step_is_completed_with_the_new_declaration(tmp_path: Path) -> None:
    prepared(tmp_path)
    (tmp_path / "table").rename(tmp_path / "prepared")
    changes: dict[str, Any] = {"types": {"temperature": "text"}}
    step = 1
    with KilledUpdates() as updates:
        while killed_at(updates, tmp_path, step, rebuild=True, **changes) != "done":
            step += 1
            found = declared(tmp_path)
            assert offsets(found) in ([], expected((TOPIC, COUNT)), expected((TOPIC, COUNT + 1), ("plant/2", 1)))
            update(declared(tmp_path, **changes), tree(tmp_path), rebuild=True)
            assert offsets(found) == expected((TOPIC, COUNT + 1), ("plant/2", 1))
            assert pl.read_delta(found.directory).schema["temperature"] == pl.String
    assert step > 10


@pytest.mark.timeout(900)
@pytest.mark.slow("kills a process at each step")
def test_a_first_run_that_is_killed_at_any_step_is_made_good(tmp_path: Path) -> None:
    history_in(tmp_path).convert(TOPIC, records(0, 3))
    step = 1
    with KilledUpdates() as updates:
        while updates.run(tmp_path, step) != "done":
            update(table := declared(tmp_path), tree(tmp_path))
            assert offsets(table) == expected((TOPIC, 3))
            shutil.rmtree(tmp_path / "table")
            step += 1
    assert step > 10


@pytest.mark.smoke
@pytest.mark.slow("kills a process at some steps")
def test_a_run_that_is_killed_before_its_commit_is_done_again_by_the_next(tmp_path: Path) -> None:
    history = history_in(tmp_path)
    history.convert(TOPIC, records(0, 3))
    update(table := declared(tmp_path), tree(tmp_path))
    history.convert(TOPIC, records(3, 2))
    step = 1
    with KilledUpdates() as updates:
        while "link" not in (killed := updates.run(tmp_path, step)) or "_delta_log" not in killed:
            assert killed != "done"
            step += 3 if step == 1 else 1
        assert len(list((tmp_path / "table").rglob("*.parquet"))) == 2
        assert offsets(table) == expected((TOPIC, 3))
    [again] = update(table, tree(tmp_path))
    assert (again.batch, again.records) == (2, 2)
    assert len(list((tmp_path / "table").rglob("*.parquet"))) == 2
    assert offsets(table) == expected((TOPIC, 5))
