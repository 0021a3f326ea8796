"""Ways to break the engine on purpose. The failure sequences must notice each of them.

A sabotage replaces a piece of the product's code for as long as it is in force. Where it leaves out a sync, the calls
below the patched function are left out, whatever they are, so that it keeps its meaning when the function changes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
import trio

from journal.engine import startup
from journal.engine.parquet.gatherer import Gatherer
from journal.engine.parquet.history_table import HistoryTable
from journal.engine.parquet.rewriting_queue import file_of
from journal.engine.segments.checkpointer import Checkpointer
from journal.engine.segments.flusher import Flusher
from journal.engine.segments.lifecycle import SegmentFiles
from journal.engine.segments.snapshots import Snapshots
from journal.engine.segments.unsynced_files import UnsyncedFiles
from journal.engine.state.shard_table import ShardTable
from journal.engine.state.views import Views
from journal.engine.wal.entry_payloads import (
    CursorCommitted,
    FilesConverted,
    ProducerUsed,
    ShardDeleted,
    StateDeleted,
    StatePut,
    Trimmed,
)
from journal.engine.wal.group_commit import Committer
from journal.engine.wal.journal_writer import JournalWriter
from journal.engine.wal.recovery import Expected, Verdict
from journal.engine.write.appender import Appender
from journal.engine.write.commands import Commands
from shards.delta import table
from shards.delta.actions import TableRequest, compare
from shards.idempotence.resends import Answer
from shards.segments.parquet_segment import ParquetSegment
from shards.segments.shard import Shard
from shards.views.shared_files import SharedFiles
from tests.crash.fates import (
    ANY,
    DIRECTORIES,
    GROUP_WRITE,
    JOURNAL_SYNC,
    SEALED,
    TABLE_LOG,
    Fail,
    Fate,
    Life,
    Restore,
    Settle,
    Stop,
    Vanish,
    random_fates,
)
from tests.crash.sequences import FEWEST, MOST, SequenceFailedError, run_fates
from tests.simulation.file_system import SimulatedFileSystem
from tests.simulation.store import SimulatedStore

Patch = pytest.MonkeyPatch
Aim = Callable[[random.Random], Fate]
Apply = Callable[[Patch], None]


@attrs.frozen
class Sabotage:
    """One way.

    Attributes:
        name: What it does.
        apply: Puts it in force.
        aim: Makes a life in which it matters; any life if it is None.
        gathering: It matters where closed segments are gathered into shared files.
    """

    name: str
    apply: Callable[[Patch], None]
    aim: Aim | None = None
    gathering: bool = False


SABOTAGES: list[Sabotage] = []


def _sabotage(name: str, aim: Aim | None = None, *, gathering: bool = False) -> Callable[[Apply], Apply]:
    def note(apply: Apply) -> Apply:
        SABOTAGES.append(Sabotage(name, apply, aim, gathering))
        return apply

    return note


def fates_against(sabotage: Sabotage, seed: int) -> list[Fate]:
    """A sequence for this seed: a generated one, or lives in which the sabotage matters."""
    rng = random.Random(seed)
    if sabotage.aim is None:
        return random_fates(rng, rng.randint(FEWEST, MOST), clocks=False)
    return [sabotage.aim(rng) for _ in range(5)]


class SabotageMisfitError(Exception):
    """A sabotage that does not fit the engine any more."""


def _is_misfit(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_misfit, error.exceptions))
    return isinstance(error, TypeError | AttributeError | NameError)


def find(sabotage: Sabotage, seeds: Sequence[int]) -> SequenceFailedError | None:
    """Run sequences under a sabotage until one breaks a promise that the sound engine keeps in the same sequence.

    Raises:
        SabotageMisfitError: The engine changed, and the sabotage is an error in itself: it proves nothing.
    """
    for seed in seeds:
        fates = fates_against(sabotage, seed)
        try:
            with in_force(sabotage):
                run_fates(fates, seed, gathering=sabotage.gathering)
        except SequenceFailedError as caught:
            if _is_misfit(caught.__cause__):
                raise SabotageMisfitError(f"an engine that {sabotage.name} does not run: {caught}") from caught
            try:
                run_fates(fates, seed, gathering=sabotage.gathering)
            except SequenceFailedError:
                # It says nothing about the sabotage.
                continue
            return caught
    return None


# Aims


def _failed_sync(rng: random.Random) -> Life:
    number = rng.randint(6, 25)
    return Life((Fail(JOURNAL_SYNC, number), Stop(JOURNAL_SYNC, number + rng.randint(1, 3))), end="power")


def _torn_group(rng: random.Random) -> Life:
    return Life((Stop(GROUP_WRITE, rng.randint(1, 16)),), end="power", kind=rng.randrange(2, 1000))


def _torn_aligned_group(rng: random.Random) -> Life:
    return Life((Stop(GROUP_WRITE, rng.randint(12, 30)),), end="power", kind=rng.randrange(2, 1000), aligned=True)


def _killed_at_the_end(rng: random.Random) -> Life:
    return Life(kind=rng.randrange(2))


def _killed(rng: random.Random) -> Life:
    return Life((Stop(ANY, rng.randint(50, 350)),))


def _without_mount(rng: random.Random) -> Fate:
    return rng.choice([_killed(rng), Vanish(rng.choice(DIRECTORIES[:3]))])


def _without_journal_file(rng: random.Random) -> Fate:
    return rng.choice([_killed(rng), Vanish("newest journal")])


def _failed_commit(rng: random.Random) -> Life:
    return Life((Fail(TABLE_LOG, rng.randint(1, 30)),), kind=rng.randrange(2))


def _killed_in_commit(rng: random.Random) -> Life:
    return Life((Stop(TABLE_LOG, rng.randint(1, 60)),))


def _left_alone(rng: random.Random) -> Fate:
    return rng.choice([Life((Stop(SEALED, rng.randint(20, 90)),)), Settle()])


def _restored(rng: random.Random) -> Fate:
    return rng.choice([Life(backup=True, kind=1), Restore()])


@contextmanager
def in_force(sabotage: Sabotage) -> Iterator[None]:
    """Break the engine for the length of the block."""
    with pytest.MonkeyPatch.context() as patch:
        sabotage.apply(patch)
        yield


def _around(patch: Patch, owner: type, method: str, change: Callable[..., Any]) -> None:
    """Call ``change(original, self, ...)`` in the place of a method."""
    original = getattr(owner, method)
    patch.setattr(owner, method, lambda self, *args, **keywords: change(original, self, *args, **keywords))


def _without_syncs(patch: Patch, owner: type, method: str, pattern: str) -> None:
    """Leave out the syncs whose name matches while a method runs."""
    left_out: list[str] = []
    sync = SimulatedFileSystem._sync

    def change(original: Callable[..., Any], self: object, *args: Any, **keywords: Any) -> Any:
        left_out.append(pattern)
        try:
            return original(self, *args, **keywords)
        finally:
            left_out.pop()

    def maybe(self: SimulatedFileSystem, what: str, *args: Any, **keywords: Any) -> None:
        if not any(re.search(each, what) for each in left_out):
            sync(self, what, *args, **keywords)

    _around(patch, owner, method, change)
    patch.setattr(SimulatedFileSystem, "_sync", maybe)


# The journal


@_sabotage("acknowledges before the journal is synced")
def _(patch: Patch) -> None:
    _without_syncs(patch, JournalWriter, "_write_group", "^fdatasync")


@_sabotage("goes on in a journal file whose name is not synced")
def _(patch: Patch) -> None:
    _without_syncs(patch, JournalWriter, "_open_next", "^sync directory")


@_sabotage("ignores a failed sync of the journal", _failed_sync)
def _(patch: Patch) -> None:
    def change(original: Callable[..., Any], self: JournalWriter, *args: Any) -> None:
        position, used = self._position, self._used[-1]
        try:
            original(self, *args)
        except OSError as error:
            if "sync" not in str(error.filename) or self._used[-1] is not used:
                raise
            size_bytes, next_lsn = args[1], args[3]
            self._position = position + 40 + size_bytes
            self._next_lsn = next_lsn
            used.last_lsn = next_lsn - 1

    _around(patch, JournalWriter, "_write_group", change)


@_sabotage("recycles journal files before a checkpoint covers them")
def _(patch: Patch) -> None:
    _around(patch, JournalWriter, "release_up_to", lambda original, self, lsn, spares: original(self, 1 << 60, spares))


@_sabotage("uses one salt for all lives of a journal file")
def _(patch: Patch) -> None:
    def change(original: Callable[..., Any], self: JournalWriter, *args: Any, **keywords: Any) -> None:
        original(self, *args, **keywords)
        self._new_salt = lambda: 7

    _around(patch, JournalWriter, "__init__", change)


@_sabotage("publishes and acknowledges before the group is written")
def _(patch: Patch) -> None:
    def kick(self: Committer) -> None:
        if self._in_flight is None and self.failure is None and (self._waiting or not self.group.is_empty):
            if not self._waiting:
                self._close_group()
            group = self._waiting[0]
            if group.buffers and not group.committed:
                buffers = list(group.buffers)
                publish = self._publish
                publish(group)
                group.decisions.clear()
                group.words.clear()
                group.published.clear()
                group.acks.clear()
                group.results.clear()
                group.buffers[:] = buffers
        original(self)

    original = Committer.kick
    patch.setattr(Committer, "kick", kick)


@_sabotage("folds a decision before it is committed")
def _(patch: Patch) -> None:
    def change(original: Callable[..., int], self: Committer, decision: Any, shard_id: int, **keywords: Any) -> int:
        lsn = original(self, decision, shard_id, **keywords)
        if isinstance(decision, StatePut | CursorCommitted):
            views: Views = self._publish.__self__.views  # type: ignore[attr-defined]
            views.fold([self.group.decisions.pop()])
        return lsn

    _around(patch, Committer, "decide", change)


@_sabotage("writes a commit as two groups")
def _(patch: Patch) -> None:
    def change(original: Callable[..., int], self: Commands, decision: Any) -> int:
        if self._committer.group.buffers:
            self._committer._close_group()
        return original(self, decision)

    _around(patch, Commands, "change_state_nowait", change)


# The start


@_sabotage("trusts the page cache at the start: the last group is not written again")
def _(patch: Patch) -> None:
    def begin(original: Any, self: Any, first_lsn: int, entries: Any = b"", next_lsn: int | None = None) -> Any:
        # After the last group, as if nothing of it had to be copied.
        return original(self, first_lsn if next_lsn is None else next_lsn)

    _around(patch, startup._NewJournalFile, "begin", begin)


@_sabotage("begins the journal of a start without syncing it")
def _(patch: Patch) -> None:
    _without_syncs(patch, JournalWriter, "begin", "sync")


@_sabotage("keeps a torn group", _torn_group)
def _(patch: Patch) -> None:
    from journal.engine.wal import recovery

    judge = recovery.judge

    def lenient(**facts: bool) -> Verdict:
        verdict = judge(**facts)
        return Verdict.KEEP if verdict is Verdict.TRUNCATE else verdict

    patch.setattr(recovery, "judge", lenient)


@_sabotage("does not hold the entries of a group against its lsns", _torn_aligned_group)
def _(patch: Patch) -> None:
    from journal.engine.wal import recovery

    def unchecked(path: str, data: memoryview, start: int, end: int, least_lsn: int, next_lsn: int) -> Any:
        entries: list[Any] = []
        damages: list[Any] = []
        for entry in recovery.decode_entries(data, start, end):
            if isinstance(entry, recovery.BadEntryHeader):
                return entries, damages, entry
            if problem := recovery.check_payload(entry):
                damages.append(recovery.Damage(path, entry.position, entry.shard_id, entry.lsn, problem))
            else:
                entries.append(entry)
        return entries, damages, None

    patch.setattr(recovery, "read_entries", unchecked)


@_sabotage("does not notice that journal files are missing", _without_journal_file)
def _(patch: Patch) -> None:
    patch.setattr(Expected, "check_files", lambda self, directory, numbers: None)
    patch.setattr(Expected, "check_end", lambda self, directory, next_lsn: None)


@_sabotage("does not look at the markers of its directories", _without_mount)
def _(patch: Patch) -> None:
    patch.setattr("journal.engine.directory.data_directory.check_markers", lambda files, path, node_id: None)


def _drop_in_replay(patch: Patch, kind: type) -> None:
    def change(original: Callable[..., None], self: Views, decisions: Any, words: Any = ()) -> None:
        if self.table.recovering:
            decisions = [each for each in decisions if not isinstance(each[2], kind)]
        original(self, decisions, words)

    _around(patch, Views, "fold", change)


@_sabotage("forgets cursors in replay")
def _(patch: Patch) -> None:
    _drop_in_replay(patch, CursorCommitted)


@_sabotage("forgets deleted keys in replay")
def _(patch: Patch) -> None:
    _drop_in_replay(patch, StateDeleted)


@_sabotage("forgets deleted shards in replay")
def _(patch: Patch) -> None:
    _drop_in_replay(patch, ShardDeleted)


@_sabotage("forgets trims in replay")
def _(patch: Patch) -> None:
    _drop_in_replay(patch, Trimmed)


@_sabotage("forgets in replay that a producer was opened")
def _(patch: Patch) -> None:
    _drop_in_replay(patch, ProducerUsed)


# Offsets, versions, producers


@_sabotage("gives offsets out again that were lost with the memory")
def _(patch: Patch) -> None:
    def change(original: Callable[..., None], self: ShardTable, shard: Any) -> None:
        shard.reserved_offset = 0
        original(self, shard)

    _around(patch, ShardTable, "settle", change)


@_sabotage("uses offsets in memory mode that are not reserved yet")
def _(patch: Patch) -> None:
    def reserve(self: Appender, shard: Any, next_offset: int) -> None:
        shard.asked_offset = shard.reserved_offset = next_offset + (1 << 20)

    patch.setattr(Appender, "_reserve", reserve)


@_sabotage("gives lsns out again, and so versions of state", _killed_at_the_end)
def _(patch: Patch) -> None:
    def change(original: Callable[..., None], self: Committer, *args: Any, **keywords: Any) -> None:
        keywords["next_lsn"] = keywords["journal_next_lsn"]
        original(self, *args, **keywords)

    _around(patch, Committer, "__init__", change)


@_sabotage("does not check the sequence of a producer")
def _(patch: Patch) -> None:
    patch.setattr("journal.engine.write.producer_sequences.answer_to", lambda *_: (Answer.STORE, -1))


@_sabotage("forgets the sequences of producers in replay")
def _(patch: Patch) -> None:
    patch.setattr(Views, "_replay_producer", lambda self, *args: None)


# Log files, checkpoints, Parquet files, backups


@_sabotage("records a checkpoint without syncing the log files")
def _(patch: Patch) -> None:
    def nothing(self: UnsyncedFiles) -> None:
        self._close_all()
        self._paths.clear()

    patch.setattr(UnsyncedFiles, "sync", nothing)


@_sabotage("syncs log files but not the directories that they are in")
def _(patch: Patch) -> None:
    _without_syncs(patch, UnsyncedFiles, "sync", "^sync directory")


@_sabotage("records a checkpoint before the log files are synced")
def _(patch: Patch) -> None:
    sync = Flusher.sync
    delayed: list[Flusher] = []

    async def later(self: Flusher) -> None:
        delayed.append(self)

    async def checkpoint(self: Checkpointer) -> None:
        await original(self)
        while delayed:
            await sync(delayed.pop())

    original = Checkpointer.checkpoint
    patch.setattr(Flusher, "sync", later)
    patch.setattr(Checkpointer, "checkpoint", checkpoint)


@_sabotage("recycles the journal without flushing the views")
def _(patch: Patch) -> None:
    patch.setattr(SimulatedStore, "flush", lambda self: None)


@_sabotage("records what of a log file is written before the journal has it")
def _(patch: Patch) -> None:
    from shards.views import shard_records

    patch.setattr(shard_records, "safe_offset", lambda shard: shard.next_offset)


@_sabotage("forgets files to be removed at a checkpoint")
def _(patch: Patch) -> None:
    def settle(self: SegmentFiles) -> None:
        self._to_remove.clear()
        original(self)

    original = SegmentFiles._settle
    patch.setattr(SegmentFiles, "_settle", settle)


# Shared files


@_sabotage("decides about shared files before their directories are synced", gathering=True)
def _(patch: Patch) -> None:
    _without_syncs(patch, SegmentFiles, "_place_shared", "^sync directory")


@_sabotage("places shared files without a note", gathering=True)
def _(patch: Patch) -> None:
    def place(original: Callable[..., None], self: SegmentFiles, prefix: str, *arguments: Any) -> None:
        original(self, prefix, *arguments)
        self._files.remove(f"{prefix}.place")

    _around(patch, SegmentFiles, "_place_shared", place)


@_sabotage("takes every shared file that a note names for one that is not valid", gathering=True)
def _(patch: Patch) -> None:
    def clean_up(original: Callable[..., None], self: SegmentFiles, is_valid: Any) -> None:
        original(self, lambda path: False)

    _around(patch, SegmentFiles, "clean_up", clean_up)


@_sabotage("removes shared files to which references are not recorded yet", gathering=True)
def _(patch: Patch) -> None:
    patch.setattr(
        SharedFiles, "removable", lambda self, checkpoint_lsn: [each for each in self if not each.live_records]
    )


@_sabotage("removes a replaced shared file before the checkpoint", gathering=True)
def _(patch: Patch) -> None:
    async def change(original: Callable[..., Any], self: Gatherer, chosen: Any, *args: Any) -> int:
        count: int = await original(self, chosen, *args)
        replaced = {each.path for _, each in chosen if isinstance(each, ParquetSegment)}
        await self._files.remove_shared(sorted(replaced))
        return count

    _around(patch, Gatherer, "put_in_place", change)


@_sabotage("forgets which shared files are not needed any more", gathering=True)
def _(patch: Patch) -> None:
    patch.setattr(SharedFiles, "removable", lambda self, checkpoint_lsn: [])


@_sabotage("does not count less when a shard is trimmed or deleted", gathering=True)
def _(patch: Patch) -> None:
    def change(original: Callable[..., None], self: SharedFiles, mutations: Any, references: Any) -> None:
        original(self, mutations, {key: (max(0, records), max(0, size)) for key, (records, size) in references.items()})

    _around(patch, SharedFiles, "refer", change)


@_sabotage("counts references again when a record of a segment is saved again", gathering=True)
def _(patch: Patch) -> None:
    from shards.views import shard_records

    def changed(store: Any, mutations: Any, others: Any = None) -> dict[Any, tuple[int, int]]:
        found: dict[Any, tuple[int, int]] = {} if others is None else others
        for _, key, value in mutations:
            if value is not None and (refers := shard_records.reference(key, value)) is not None:
                records, size = found.get(refers[0], (0, 0))
                found[refers[0]] = records + refers[1], size + refers[2]
        return found

    patch.setattr(shard_records, "changed_references", changed)


@_sabotage("uses the id of a shared file again", gathering=True)
def _(patch: Patch) -> None:
    patch.setattr(Gatherer, "new_file", lambda self: (7, self._files.new_prefix(7)))


@_sabotage("forgets in replay which segments are in shared files", gathering=True)
def _(patch: Patch) -> None:
    _drop_in_replay(patch, FilesConverted)


@_sabotage("puts parts one row too far into a shared file", gathering=True)
def _(patch: Patch) -> None:
    def put(original: Callable[..., Any], self: Shard, parts: list[ParquetSegment]) -> Any:
        for part in parts:
            part.place = attrs.evolve(part.place, first_row=part.place.first_row + 1)
        return original(self, parts)

    _around(patch, Shard, "put_parts", put)


# The Delta table


@_sabotage("removes shared files that the Delta table still names", _failed_commit, gathering=True)
def _(patch: Patch) -> None:
    patch.setattr(HistoryTable, "may_remove", lambda self, key: True)


@_sabotage("counts a commit of the Delta table as made that failed", _failed_commit, gathering=True)
def _(patch: Patch) -> None:
    async def change(original: Callable[..., Any], self: HistoryTable, converter: Any) -> None:
        wanted = self._wanted()
        await original(self, converter)
        if self.last_failure:
            self._committed = wanted
            self._out_since |= {file.key: trio.current_time() for file in self._files if file.key not in wanted}

    _around(patch, HistoryTable, "bring_up_to_date", change)


@_sabotage("does not sync the directory of the log of the Delta table", gathering=True)
def _(patch: Patch) -> None:
    _without_syncs(patch, table._Update, "run", "^sync directory .*/_delta_log$")


@_sabotage("does not sync the commits of the Delta table", gathering=True)
def _(patch: Patch) -> None:
    _without_syncs(patch, table._Update, "run", "^fsync .*/_delta_log/")


@_sabotage("leaves replaced files in the Delta table", gathering=True)
def _(patch: Patch) -> None:
    def add_alone(wanted: Any, present: Any) -> Any:
        return attrs.evolve(compare(wanted, present), unwanted=())

    patch.setattr(table, "compare", add_alone)


@_sabotage(
    "adds files to the Delta table a commit before it removes what they replace", _killed_in_commit, gathering=True
)
def _(patch: Patch) -> None:
    def add_first(wanted: Any, present: Any) -> Any:
        found = compare(wanted, present)
        return attrs.evolve(found, unwanted=()) if found.missing else found

    async def change(original: Callable[..., Any], self: HistoryTable, converter: Any) -> None:
        await original(self, converter)
        await original(self, converter)

    patch.setattr(table, "compare", add_first)
    _around(patch, HistoryTable, "bring_up_to_date", change)


@_sabotage(
    "removes files from the Delta table a commit before it adds what replaces them", _killed_in_commit, gathering=True
)
def _(patch: Patch) -> None:
    def remove_first(wanted: Any, present: Any) -> Any:
        found = compare(wanted, present)
        return attrs.evolve(found, missing=()) if found.unwanted else found

    async def change(original: Callable[..., Any], self: HistoryTable, converter: Any) -> None:
        await original(self, converter)
        await original(self, converter)

    patch.setattr(table, "compare", remove_first)
    _around(patch, HistoryTable, "bring_up_to_date", change)


@_sabotage("takes replaced files for valid until a checkpoint", _killed_in_commit, gathering=True)
def _(patch: Patch) -> None:
    def change(original: Callable[..., None], self: SharedFiles, placed: Any, replaced: Any) -> None:
        original(self, placed, ())

    _around(patch, SharedFiles, "note_replacement", change)


@_sabotage("commits to the Delta table before the journal has the decision", gathering=True)
def _(patch: Patch) -> None:
    async def change(original: Callable[..., Any], self: Gatherer, chosen: Any, file_id: int, written: Any) -> Any:
        decision, wanted = await original(self, chosen, file_id, written)
        replaced = {file_of(segment) for _, segment in chosen}
        keys = {key for key in self._valid() if key not in replaced} | {(file.day, file_id) for file in written.files}
        lsn = self._commands._committer.journal_lsn
        await self._converter.update_table(TableRequest(self._table.sealed_root, lsn, tuple(sorted(keys))))
        return decision, wanted

    _around(patch, Gatherer, "_decision", change)


@_sabotage("trusts at a start that the Delta table is as it should be", _left_alone, gathering=True)
def _(patch: Patch) -> None:
    def change(original: Callable[..., bool], self: HistoryTable) -> bool:
        if self._committed is None:
            self._committed = self._wanted()
        return original(self)

    _around(patch, HistoryTable, "_differs", change)


@_sabotage("leaves the last group out of a backup", _restored)
def _(patch: Patch) -> None:
    def change(original: Callable[..., None], self: Snapshots, written: Any, target: str) -> None:
        end = max(4096, written.end - 300) if written.end < written.size_bytes else written.end
        original(self, attrs.evolve(written, end=end), target)

    _around(patch, Snapshots, "_copy_journal_file", change)
