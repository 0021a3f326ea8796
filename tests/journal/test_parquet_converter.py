"""The process that writes Parquet files: what it answers, and what becomes of it."""

from __future__ import annotations

import errno
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import msgspec
import pytest
import trio
import trio.testing

from journal.engine import Engine, open_engine
from journal.engine.directory.data_directory import MARKER
from journal.engine.parquet.conversion_messages import (
    Answer,
    Request,
    joined_answer,
    joined_request,
    lines_of_answer,
    lines_of_request,
)
from journal.engine.parquet.converter import WorkerConverter
from journal.engine.parquet.worker import answer
from journal.settings.server import ConversionConfig, ServerConfig, StorageConfig
from journal.settings.values import ConfigurationError
from shards.errors import ConversionFailedError, CorruptionError
from shards.model import SegmentKind, ShardConfig
from shards.seams.os_file_system import OsFileSystem
from shards.segments.conversion_plan import (
    GatheredFiles,
    PartSource,
    SharedFile,
    SharedPart,
    SharedPlan,
)
from shards.segments.log_segment import LogSegment
from tests.journal.engines import append, values_of
from tests.patience import PATIENCE_S

DIES = (sys.executable, "-c", "import os, sys; sys.stdin.readline(); os.kill(os.getpid(), 9)")
BABBLES = (sys.executable, "-c", "import sys; sys.stdin.readline(); print('what?', flush=True); sys.stdin.read()")
CONFIG = ServerConfig(
    storage=StorageConfig(journal_file_bytes=1 << 20, journal_budget_bytes=4 << 20, disk_reserve_bytes=0),
    conversion=ConversionConfig(max_age_s=86_400, delta=False),
)


@asynccontextmanager
async def closed_segment(path: Path, converter: WorkerConverter) -> AsyncIterator[tuple[Engine, SharedPlan]]:
    """An engine with a shard ``s`` whose only segment with records is closed, and a plan for that."""
    async with open_engine(str(path / "data"), CONFIG, make_converter=lambda: converter) as engine:
        await engine.create_shard("s", ShardConfig())
        for number in range(10):
            await append(engine, "s", b"value %d" % number)
        await engine.roll("s")
        await engine.parts.checkpointer.flush()
        segment = engine.parts.table.by_name("s").segments[0]
        assert isinstance(segment, LogSegment)
        source = PartSource(
            log_path=segment.path,
            name="s",
            shard_id=segment.shard_id,
            base_offset=0,
            next_offset=10,
            start_position=segment.start_position,
            end_position=segment.end,
        )
        yield engine, SharedPlan(str(path / "7"), 7, (source,))


async def test_the_worker_writes_one_file_after_the_other_and_ends_when_it_may_rest(tmp_path: Path) -> None:
    converter = WorkerConverter()
    async with closed_segment(tmp_path, converter) as (_, plan):
        (first,) = (await converter.gather(plan)).files
        pid = converter.pid
        assert pid is not None
        assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)
        assert (first.record_count, first.size_bytes) == (10, os.path.getsize(first.path))
        assert (await converter.gather(plan)).files[0].digest == first.digest
        assert converter.pid == pid
        await converter.rest()
        assert converter.pid is None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_the_worker_writes_shared_files_and_tells_which_shards_they_have(tmp_path: Path) -> None:
    converter = WorkerConverter()
    async with closed_segment(tmp_path, converter) as (_, plan):
        gathered = await converter.gather(plan)
        (file,) = gathered.files
        assert (file.record_count, file.size_bytes) == (10, os.path.getsize(file.path))
        assert [(part.base_offset, part.next_offset) for part in gathered.parts] == [(0, 10)]
        assert await converter.shards_in(file.path) == [plan.sources[0].shard_id]
        with pytest.raises(CorruptionError, match="No such file"):
            await converter.shards_in(str(tmp_path / "missing"))
        await converter.rest()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
def test_what_is_about_many_segments_is_said_in_several_lines(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("journal.engine.parquet.conversion_messages._ITEMS_IN_A_LINE", 2)
    sources = [PartSource(f"/log/{number}", "a", 1, number, number + 1) for number in range(count)]
    lines = list(lines_of_request(Request(gather=SharedPlan("/out", 7, sources))))
    assert len(lines) == max(1, (count + 1) // 2)
    request = joined_request([msgspec.json.decode(line, type=Request) for line in lines])
    assert request.gather is not None
    assert (request.gather.file_id, list(request.gather.sources), request.continues) == (7, sources, False)
    files = (SharedFile(1, "/out-1", 100, b"digest", count, 10, 1),)
    parts = [SharedPart(number, 0, number, number + 1, number, 10, 1, 2, 3) for number in range(count)]
    lines = list(lines_of_answer(Answer(gathered=GatheredFiles(files, parts))))
    assert len(lines) == max(1, (count + 1) // 2)
    answer = joined_answer([msgspec.json.decode(line, type=Answer) for line in lines])
    assert answer.gathered is not None
    assert (answer.gathered.files, list(answer.gathered.parts), answer.continues) == (files, parts, False)


@pytest.mark.slow("starts the process that writes Parquet")
async def test_the_worker_says_where_a_log_is_damaged_and_continues(tmp_path: Path) -> None:
    converter = WorkerConverter()
    async with closed_segment(tmp_path, converter) as (_, plan):
        with pytest.raises(CorruptionError) as caught:
            await converter.gather(attrs.evolve(plan, sources=(attrs.evolve(plan.sources[0], next_offset=11),)))
        assert caught.value.path == plan.sources[0].log_path
        with pytest.raises(ConversionFailedError, match="No such file"):
            await converter.gather(attrs.evolve(plan, out_prefix=str(tmp_path / "nowhere" / "7")))
        assert (await converter.gather(plan)).files[0].record_count == 10
        await converter.rest()


async def test_a_worker_that_is_killed_is_reported_and_replaced(tmp_path: Path) -> None:
    converter = WorkerConverter()
    async with closed_segment(tmp_path, converter) as (_, plan):
        await converter.gather(plan)
        pid = converter.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ConversionFailedError, match=f"pid {pid}.*offsets 0 to 10 of shard 's'.*signal 9"):
            await converter.gather(plan)
        assert (await converter.gather(plan)).files[0].record_count == 10
        assert converter.pid != pid
        await converter.rest()


SHORT_OF_FILES_ONCE = """
import os, resource, sys
from journal.engine.parquet import worker

def runs_short(event, arguments):
    if event == "import" and arguments[0] == "numpy._core._add_newdocs" and not os.path.exists({was_short!r}):
        open({was_short!r}, "x").close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

sys.addaudithook(runs_short)
worker.main()
"""


async def test_libraries_that_were_imported_by_half_fail_one_conversion_and_not_all_that_follow(tmp_path: Path) -> None:
    """numpy whose import was stopped by EMFILE behind its C extension cannot be imported again by that process."""
    program = SHORT_OF_FILES_ONCE.format(was_short=str(tmp_path / "was_short"))
    converter = WorkerConverter((sys.executable, "-c", program))
    async with closed_segment(tmp_path, converter) as (_, plan):
        with pytest.raises(ConversionFailedError, match=r"cannot be loaded.*Too many open files"):
            await converter.gather(plan)
        assert (await converter.gather(plan)).files[0].record_count == 10
        await converter.rest()


@pytest.mark.parametrize(
    ("command", "expected"),
    [(DIES, "killed by signal 9"), (BABBLES, "answered"), (("/nowhere/python",), "cannot be started")],
    ids=["dies", "babbles", "missing"],
)
async def test_a_segment_stays_a_log_while_its_worker_fails_and_appends_go_on(
    tmp_path: Path, command: tuple[str, ...], expected: str
) -> None:
    async with closed_segment(tmp_path, WorkerConverter(command)) as (engine, _):
        with pytest.raises(ConversionFailedError, match=expected):
            await engine.convert("s")
        assert engine.failure is None
        await append(engine, "s", b"and on")
        shard = engine.parts.table.by_name("s")
        assert {segment.kind for segment in shard.segments} == {SegmentKind.LOG}
        assert await values_of(engine, "s") == [*(b"value %d" % number for number in range(10)), b"and on"]
    assert os.listdir(tmp_path / "data" / "sealed") == [MARKER]


@pytest.mark.slow("starts the process that writes Parquet")
async def test_a_worker_that_is_killed_in_the_middle_leaves_the_log_for_the_next_try(tmp_path: Path) -> None:
    converter = WorkerConverter()
    async with closed_segment(tmp_path, converter) as (engine, plan):
        await converter.gather(plan)
        assert converter.pid is not None
        os.kill(converter.pid, signal.SIGSTOP)
        async with trio.open_nursery() as nursery:

            async def told() -> None:
                with pytest.raises(ConversionFailedError, match="signal 9"):
                    await engine.convert("s")

            nursery.start_soon(told)
            await trio.testing.wait_all_tasks_blocked(0.05)
            os.kill(converter.pid, signal.SIGKILL)
        await engine.convert("s")
        assert engine.parts.table.by_name("s").segments[0].kind is SegmentKind.PARQUET
        assert len(await values_of(engine, "s")) == 10


async def test_stopping_the_engine_ends_the_worker_in_the_middle_of_a_file(tmp_path: Path) -> None:
    converter = WorkerConverter()
    async with closed_segment(tmp_path, converter) as (engine, plan):
        await converter.gather(plan)
        pid = converter.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        with trio.move_on_after(0.05):
            await engine.convert("s")
    with trio.fail_after(PATIENCE_S):
        while _lives(pid):
            await trio.sleep(0.01)
    async with open_engine(str(tmp_path / "data"), CONFIG) as engine:
        assert len(await values_of(engine, "s")) == 10
        assert os.listdir(tmp_path / "data" / "sealing") == []


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_whose_engine_was_killed_ends_without_a_word(tmp_path: Path) -> None:
    plan = SharedPlan(str(tmp_path / "out"), 7, (PartSource(str(tmp_path / "missing"), "s", 1, 0, 1, 0, 1),))
    command = (sys.executable, "-m", "journal.engine.parquet.worker")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stderr is not None
        worker.stdout.close()
        # The input stays open, as between the end of the engine and the moment when the worker notices that.
        worker.stdin.writelines(lines_of_request(Request(gather=plan)))
        worker.stdin.flush()
        assert worker.stderr.read() == b""
        assert worker.wait(PATIENCE_S) == 0


def test_a_disk_that_refuses_is_an_answer() -> None:
    class FullFiles(OsFileSystem):
        def open(self, path: str, *, create: bool = False, write: bool = True) -> object:  # type: ignore[override]
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    said = answer(FullFiles(), Request(gather=SharedPlan("/out", 7, (PartSource("/log", "s", 1, 0, 1, 64, 128),))))
    assert said.failure == "/log: No space left on device"


async def test_conversion_without_its_libraries_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find(name))
    with pytest.raises(ConfigurationError, match=r"pyarrow.*pip install .*pyarrow.*conversion\.enabled = false"):
        async with open_engine(str(tmp_path), CONFIG):
            pass
    assert os.listdir(tmp_path) == []
    async with open_engine(str(tmp_path), attrs.evolve(CONFIG, conversion=ConversionConfig(enabled=False))):
        pass


def test_the_process_that_converts_loads_neither_the_engine_nor_its_event_loop() -> None:
    """Every server that converts has one beside its appends. With them it would take almost three times as long."""
    program = "import sys, journal.engine.parquet.worker; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert not {"trio", "journal.engine.engine", "journal.settings", "journal.engine.parquet.converter"} & set(loaded)
