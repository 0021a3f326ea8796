"""What files an engine may have once it has settled: for every segment its file, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from journal.engine import Engine
from journal.engine.directory.data_directory import MARKER
from shards.delta.actions import table_path
from shards.delta.log_files import ASIDE, LOG, exists
from shards.seams.file_system import FileSystem
from shards.segments.log_segment import LogSegment
from shards.segments.parquet_segment import ParquetSegment
from shards.views.shared_files import FileKey
from tests.crash.ledger import require
from tests.simulation.delta_log import JsonLog

_MOST_ROUNDS = 100_000
"""Some minutes. Clocks say nothing here: simulations have clocks of their own, which jump while a thread works."""


async def check_files(engine: Engine, files: FileSystem, data: str, *, most_rounds: int = _MOST_ROUNDS) -> None:
    """Let the engine settle and compare its files with its segments: never both, never neither, nothing left over.

    Args:
        engine: The engine. No other task uses it meanwhile.
        files: Its file system.
        data: Its directory.
        most_rounds: It has settled after so many looks with a pause of a hundredth of a second.
    """
    for _ in range(most_rounds):
        # By the task that makes all checkpoints: nothing else flushes meanwhile.
        await engine.checkpoint()
        # Held, so that no thread puts a file into its place while they are compared.
        async with engine.parts.segment_files.hold():
            is_settled = engine.parts.segment_files.settled and not engine.parts.checkpointer.dirty
            if (
                is_settled
                and engine.parts.history.is_current
                and not _unneeded(engine)
                and not files.listdir(f"{data}/sealing")
            ):
                _compare(engine, files, data)
                return
        # A segment is being sealed.
        await trio.sleep(0.01)
    require(False, "segments are not sealed, or files not removed", engine.parts.conversion.failure)


def _compare(engine: Engine, files: FileSystem, data: str) -> None:
    wanted: set[str] = set()
    possible: set[str] = set()
    referred: dict[tuple[int, int], int] = {}
    for name in engine.parts.table.catalogue.matching("#"):
        shard = engine.parts.table.by_name(name)
        for segment in shard.segments:
            if isinstance(segment, LogSegment):
                (wanted if segment.flushed_offset > segment.base_offset else possible).add(segment.path)
                possible.add(segment.index_path)
            elif isinstance(segment, ParquetSegment):
                wanted.add(segment.path)
                key = segment.place.day, segment.place.file_id
                referred[key] = referred.get(key, 0) + segment.next_offset - segment.base_offset
    _compare_table(engine, files, f"{data}/sealed", referred.keys())
    recorded = {file.key: file.live_records for file in engine.parts.views.files}
    require(recorded == referred, "files are not referred to as recorded", recorded, referred)
    found = set(_files_below(files, f"{data}/log")) | set(_files_below(files, f"{data}/sealed"))
    require(wanted <= found, "files are missing", sorted(wanted - found))
    require(found <= wanted | possible, "files are left over", sorted(found - wanted - possible))


def _unneeded(engine: Engine) -> bool:
    """Whether there are shared files that are to be removed."""
    return any(not file.live_records for file in engine.parts.views.files)


def _compare_table(engine: Engine, files: FileSystem, sealed: str, referred: Iterable[FileKey]) -> None:
    """Compare the Delta table with the segments, if the engine has one."""
    if exists(files, sealed):
        found, wanted = JsonLog(files).read(sealed).files.keys(), {table_path(*key) for key in referred}
        require(found == wanted, "the Delta table has other files", sorted(found), sorted(wanted))


def refers_to(engine: Engine, path: str) -> bool:
    """Whether a segment of any shard is in this file. A stopped shard may: not all of its segments are known."""
    shards = map(engine.parts.table.by_name, engine.parts.table.catalogue.matching("#"))
    return any(
        shard.damage
        or any(segment.path == path for segment in shard.segments if isinstance(segment, LogSegment | ParquetSegment))
        for shard in shards
    )


def _files_below(files: FileSystem, directory: str) -> list[str]:
    found = []
    for name in files.listdir(directory):
        if name in (MARKER, LOG, ASIDE):
            continue
        path = f"{directory}/{name}"
        inner = [f"{path}/{file}" for file in files.listdir(path)]
        require(bool(inner) or "/log" in directory, "an empty directory of a shard", path)
        found += inner
    return found
