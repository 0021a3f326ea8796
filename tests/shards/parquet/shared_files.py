"""Logs of several shards, and the shared files that they are gathered into: for the tests of shared files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from shards.format.batch import BatchHeader, Codec, encode, iterate, stamp
from shards.format.record import Record, StoredRecord
from shards.parquet.shared_file import write_shared_files
from shards.parquet.shared_reading import PartOfFile, SharedReader
from shards.parquet.shared_verification import verify_shared
from shards.parquet.wire_batches import EncodedGroup
from shards.seams.file_system import FileSystem
from shards.segments.conversion_plan import GatheredFiles, PartSource, SharedPart, SharedPlan
from shards.segments.log_segment import LogHeader
from shards.segments.segment_paths import shared_path
from tests.shards.batches import NOW_US, record_lists
from tests.shards.parquet.stamped_batches import BASE_OFFSET, decode_all
from tests.simulation.file_system import SimulatedFileSystem

NAME = "plant/line-\u00fc"
FILE_ID = 0x51E5_0000_0000_0007
DAY_US = 86_400_000_000
SEALING = "/sealing"


@attrs.frozen
class Appended:
    """One batch of a log: its records, how long after the one before it was appended, and its codec."""

    records: list[Record]
    later_us: int = 50
    codec: Codec = Codec.NONE


@attrs.frozen
class Log:
    """What a log has, before it is written."""

    name: str
    shard_id: int
    batches: Sequence[Appended]
    base_offset: int = 0
    first_lsn: int = 5
    first_us: int = NOW_US

    def encode(self) -> bytes:
        """The stamped batches back to back."""
        log, offset, time_us = bytearray(), self.base_offset, self.first_us
        for number, batch in enumerate(self.batches):
            at = len(log)
            log += encode(batch.records, now_us=NOW_US, codec=batch.codec)
            time_us += batch.later_us
            stamp(log, at, offset, self.first_lsn + 3 * number, time_us)
            offset = BatchHeader.unpack(log, at).next_offset
        return bytes(log)

    @property
    def stored(self) -> list[StoredRecord]:
        """The records as readers of the shard see them."""
        return decode_all(self.encode())


# Few names and distances, so that examples have shards of the same name, and days with many and with one of them.
_names = st.sampled_from(["a", "plant/line", "plant/line-\u00fc", "z" * 300, "\U0001f321"])
_batches = st.lists(
    st.builds(Appended, record_lists, st.sampled_from([0, 1, 50, DAY_US, 3 * DAY_US]), st.sampled_from(Codec)),
    min_size=1,
    max_size=5,
)


@st.composite
def logs(draw: Any) -> list[Log]:
    """One to six logs of different shards, in the order of a plan."""
    drawn = draw(st.lists(st.tuples(_names, _batches, st.integers(0, 1000)), min_size=1, max_size=6))
    made = [Log(name, 7 + number, batches, base) for number, (name, batches, base) in enumerate(drawn)]
    return sorted(made, key=lambda log: (log.name.encode(), log.shard_id))


def make_directories(files: FileSystem) -> None:
    """Make the directories of logs and of files that are being written."""
    for directory in (SEALING, "/log"):
        files.mkdir(directory)
    files.sync_directory("/")


def write_batches(
    files: FileSystem,
    batches: bytes,
    *,
    name: str = NAME,
    shard_id: int = 7,
    base_offset: int = BASE_OFFSET,
    first_us: int = NOW_US,
) -> PartSource:
    """Write a log file with stamped batches and return it as the source of a plan."""
    header = LogHeader(shard_id, base_offset, first_us, name).encode()
    path = f"/log/{shard_id:016x}-{base_offset:020}.log"
    file = files.open(path, create=True)
    # What is behind the end is none of the segment's.
    file.pwritev([header, batches, b"more"], 0)
    file.fsync()
    file.close()
    files.sync_directory("/log")
    next_offset = base_offset
    for _, batch in iterate(batches):
        next_offset = batch.next_offset
    return PartSource(
        log_path=path,
        name=name,
        shard_id=shard_id,
        base_offset=base_offset,
        next_offset=next_offset,
        start_position=len(header),
        end_position=len(header) + len(batches),
    )


def write_log(files: FileSystem, log: Log) -> PartSource:
    """Write a log file and return it as the source of a plan."""
    return write_batches(
        files,
        log.encode(),
        name=log.name,
        shard_id=log.shard_id,
        base_offset=log.base_offset,
        first_us=log.first_us,
    )


def plan_for(*sources: PartSource) -> SharedPlan:
    """The plan to gather what was written."""
    return SharedPlan(f"{SEALING}/7", FILE_ID, sources)


def plan_of(files: FileSystem, written: Sequence[Log]) -> SharedPlan:
    """Write the logs and return the plan to gather them."""
    make_directories(files)
    return plan_for(*(write_log(files, log) for log in written))


@attrs.frozen
class Gathered:
    """Shared files, with what they were made of."""

    files: SimulatedFileSystem
    plan: SharedPlan
    made: GatheredFiles

    def part_of(self, part: SharedPart) -> PartOfFile:
        """A part as the views would have it."""
        shard_id = self.plan.sources[part.source].shard_id
        return PartOfFile(shard_id, part.base_offset, part.next_offset, part.first_row)

    def parts_in(self, number: int) -> list[PartOfFile]:
        """The parts in a file."""
        return [self.part_of(part) for part in self.made.parts if part.file == number]

    def open(self, number: int = 0) -> SharedReader:
        return SharedReader(self.files, self.made.files[number].path)

    def content(self, number: int = 0) -> bytes:
        file = self.files.open(self.made.files[number].path, write=False)
        return file.pread(file.size(), 0)

    def groups_of(self, source: int) -> list[EncodedGroup]:
        """The batches of a source by row groups, as the server reads them."""
        found = []
        for part in self.made.parts:
            if part.source == source:
                with self.open(part.file) as reader:
                    wanted = self.part_of(part)
                    found += [reader.batches(wanted, group) for group in reader.groups_of(wanted)]
        return found

    def batches_of(self, source: int) -> bytes:
        """All batches of a source."""
        return b"".join(group.data for group in self.groups_of(source))

    def put_in_place(self, number: int = 0) -> str:
        """Move a file to its place and return its path."""
        made = self.made.files[number]
        path = shared_path("/sealed", made.day, self.plan.file_id)
        self.files.mkdir("/sealed")
        self.files.mkdir(path.rpartition("/")[0])
        self.files.rename(made.path, path)
        return path

    def problems_in_place(self, number: int = 0) -> list[str]:
        """Move a file to its place and return what is wrong with it."""
        path, made = self.put_in_place(number), self.made.files[number]
        return verify_shared(self.files, path, self.parts_in(number), size_bytes=made.size_bytes, digest=made.digest)


def gather(written: Sequence[Log], **options: int) -> Gathered:
    """Gather logs into shared files."""
    files = SimulatedFileSystem()
    plan = plan_of(files, written)
    return Gathered(files, plan, write_shared_files(files, plan, **options))


def gather_batches(batches: bytes, **options: int) -> Gathered:
    """Gather a log of these stamped batches into shared files."""
    files = SimulatedFileSystem()
    make_directories(files)
    plan = plan_for(write_batches(files, batches))
    return Gathered(files, plan, write_shared_files(files, plan, **options))


def as_stored(rows: pa.Table) -> pa.Table:
    """Rows of a shared file with the topics as records had them."""
    topics = pc.if_else(rows.column("own_topic"), rows.column("topic"), "")
    return rows.set_column(rows.schema.get_field_index("topic"), "topic", topics)
