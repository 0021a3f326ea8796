"""Runs sequences of failures over one simulated machine, and checks after each start that every promise is kept.

`run_sequence` is what a torture run calls in a loop: one seed, one sequence, the same outcome every time. A sequence
that breaks a promise raises `SequenceFailedError`, which has the seed and all that happened, in order;
`run_fates` runs such a list again.
"""

from __future__ import annotations

import copy
import posixpath
import random
import zlib
from collections.abc import Sequence

import attrs

from journal.backup import restore
from journal.check import check_directory
from journal.engine import Engine
from journal.engine.directory.data_directory import is_complete
from shards.errors import StorageError
from shards.seams.clock import ManualClock
from tests.crash.fates import (
    DIRECTORIES,
    SEGMENT_FILES,
    Evict,
    Fail,
    Fate,
    Full,
    Life,
    LosePages,
    Move,
    PowerLoss,
    Restore,
    SetClock,
    Settle,
    Stop,
    Vanish,
    choices,
    random_fates,
    with_moves,
)
from tests.crash.ledger import BrokenPromiseError, require
from tests.crash.segment_files import check_files, refers_to
from tests.crash.sequence_workload import BACKUP, SequenceLedger, SequenceWorkload, check_more, look_at_all
from tests.crash.simulated_table import SimulatedTable
from tests.crash.simulated_workload import check
from tests.crash.simulation import DATA, GATHERING, TINY, deterministic, open_simulated_store, run
from tests.simulation.delta_log import JsonLog
from tests.simulation.disk import Disk
from tests.simulation.file_system import (
    CrashNow,
    Fault,
    SimulatedFileSystem,
    Trigger,
    Vanished,
    everything_lost,
    full_disk,
)

STEPS = 6
"""How much each client of a life does."""

SETTLED_AFTER = 3000
"""An engine that is left alone has settled after so many looks at it: half a minute by its own clock."""

FEWEST, MOST = 4, 9
"""Fates of a generated sequence."""

_LIST_OF = {"journal": ".jnl", "log": ".log", "parquet": ".parquet"}


class SequenceFailedError(AssertionError):
    """A sequence of failures after which the node does not keep its promises.

    Attributes:
        seed: What `run_sequence` was given.
        fates: All that happened.
        at: Number of the fate, from 1, in which it was found.
        short_steps: Whether long work of the engine was done in short steps.
        gathering: Whether closed segments were gathered into shared files.
    """

    def __init__(
        self, seed: int, fates: Sequence[Fate], at: int, problem: BaseException, *, short_steps: bool, gathering: bool
    ) -> None:
        told = "\n".join(f"  {'>' if number == at else ' '} {fate}" for number, fate in enumerate(fates, 1))
        problems = "; ".join(f"{type(error).__name__}: {error}" for error in leaves(problem))
        how = (", short steps" if short_steps else "") + (", gathering" if gathering else "")
        super().__init__(f"seed {seed}{how}: {problems}\n{told}\n")
        self.seed = seed
        self.fates = list(fates)
        self.at = at
        self.short_steps = short_steps
        self.gathering = gathering


def leaves(error: BaseException) -> list[BaseException]:
    """The errors in a group, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


@attrs.define
class SequenceReport:
    """What a sequence came to that kept every promise.

    Attributes:
        seed: Its seed.
        fates: All that happened.
        short_steps: Whether long work of the engine was done in short steps.
        gathering: Whether closed segments were gathered into shared files.
        lives: Runs of the engine, those that were refused included.
        operations: File system operations of all of them.
        appends: Appends that the clients asked for.
        failures: Lives that ended by a failure of the disk, a kill or a power loss in their midst.
    """

    seed: int
    fates: list[Fate]
    short_steps: bool = False
    gathering: bool = False
    lives: int = 0
    operations: int = 0
    appends: int = 0
    failures: int = 0


class Machine:
    """One disk and what its clients know, life after life.

    Args:
        seed: Of the clients' choices and of the scheduler.
        steps: How much each client does in a life.
        short_steps: Long work of the engine lets others run after a few items each time.
        gathering: Closed segments are gathered into shared files.
    """

    def __init__(self, seed: int, steps: int = STEPS, *, short_steps: bool = False, gathering: bool = False) -> None:
        self.seed = seed * 1000
        self.steps = steps
        self.short_steps = short_steps
        self.config = GATHERING if gathering else TINY
        self.ledger = SequenceLedger()
        self.clock = ManualClock()
        self.files = SimulatedFileSystem(disk=Disk(1 << 30, has_lasting_paths=True))
        self.table = SimulatedTable(f"{DATA}/sealed")
        self._moved: Vanished | None = None
        self.report = SequenceReport(seed, [], short_steps, gathering)

    def live(self, life: Life) -> None:
        """Start the engine, check, work, and end as the life says."""
        for fault in life.faults:
            if not isinstance(fault, Move):
                self._arm(fault)
        ended = self._run(life)
        self._put_back()
        self.report.failures += ended is not None
        if life.end == "power":
            self.lose_power(life.kind)
        else:
            self.files = self.files.kill(choices(life.kind))
        self._check_offline(after_power_loss=life.end == "power")

    def _arm(self, fault: Stop | Fail | Full) -> None:
        if isinstance(fault, Stop):
            self.files.crash_at(fault.nth, pattern=fault.pattern, written=fault.written)
        elif isinstance(fault, Full):
            self.files.inject(full_disk(Trigger(fault.nth, lasts=fault.lasts), fault.number))
        else:
            trigger = Trigger(fault.nth, fault.pattern)
            self.files.inject(Fault(trigger, fault.number, fault.reached_disk, fault.keep_entries))

    def _arm_move(self, move: Move, started: int) -> None:
        self.files.do_at(started + move.nth, lambda: self._move(move))
        self.files.do_at(started + move.nth + move.lasts, self._put_back)

    def _move(self, move: Move) -> None:
        path = f"{DATA}/{move.what}"
        if self.files.disk.exists(path):
            # The engine may find it, and then fails.
            self.files.failed = True
            self._moved = self.files.disk.vanish(
                path, leave_empty_directory=move.left == "empty", leave_copy=move.left == "copy"
            )

    def _put_back(self) -> None:
        moved, self._moved = self._moved, None
        if moved is not None:
            self.files.disk.put_back(moved)

    def _run(self, life: Life) -> BaseException | None:
        opened: list[Engine] = []

        async def body(engine: Engine) -> None:
            opened.append(engine)
            rows = self.table.rows(self.files)
            started = len(self.files.operations)
            for fault in life.faults:
                if isinstance(fault, Move):
                    self._arm_move(fault, started)
            await self._check(self.ledger, engine)
            await self.table.compare(rows, engine)
            self.clock.advance(seconds=1)
            rng = random.Random(self.seed)
            workload = SequenceWorkload(
                self.ledger,
                engine,
                rng,
                self.clock,
                self.steps,
                files=self.files,
                clock_jumps_s=life.clock_jumps_s,
            )
            await (workload.commit_aligned() if life.aligned else workload.run())
            await workload.finish()
            if engine.failure is None:
                await look_at_all(self.ledger, engine)
                if life.backup:
                    await workload.back_up(DATA)
            if life.end != "close":
                self.files.stop()
                raise CrashNow("at the end of the workload")

        try:
            return self._start(body)
        finally:
            # Commits are written by path: those during a move are in what was in the place of the directory, and gone
            # with it.
            is_moved = any(isinstance(fault, Move) for fault in life.faults)
            for engine in opened if not is_moved else ():
                self.table.durable_version = max(self.table.durable_version, engine.parts.history.version)

    async def _check(self, ledger: SequenceLedger, engine: Engine) -> None:
        await check(ledger, engine)
        await check_more(ledger, engine)

    def _start(self, body, *, data: str = DATA) -> BaseException | None:  # type: ignore[no-untyped-def]
        self.seed += 1
        self.report.lives += 1
        try:
            return run(
                self.files,
                body,
                seed=self.seed,
                clock=self.clock,
                config=self.config,
                data=data,
                short_steps=self.short_steps,
            )
        finally:
            self.report.operations += len(self.files.operations)

    def lose_power(self, kind: int) -> None:
        """Lose the power: the machine's clock of elapsed time begins again as well."""
        self.files = self.files.crash(choices(kind))
        self.clock = ManualClock(self.clock.now_us())

    def _check_offline(self, *, after_power_loss: bool = False) -> None:
        """No order of failures leaves what `journal check` calls damage, once a first start has come to its end.

        The Delta table is readable in every moment: its log is whole, and all files of its newest version are there.

        Args:
            after_power_loss: Nothing was written since the power was lost.
        """
        if self.files.exists(f"{DATA}/FORMAT") and is_complete(self.files, DATA):
            with deterministic(self.seed) as rng:
                report = check_directory(
                    DATA,
                    files=self.files,
                    open_store=lambda path: open_simulated_store(self.files, rng, path),
                    open_delta_library=lambda: JsonLog(self.files),
                )
            require(not report.damages, "the offline check finds damage", report.damages)
            of_table = [note for note in report.notes if "Delta table" in note.problem]
            require(not of_table, "the Delta table cannot be read", of_table)
            self.table.look(self.files, after_power_loss=after_power_loss)
            self.files = self.files.kill(everything_lost)

    # What is missing

    def vanish(self, what: str) -> None:
        """Start without something. That is refused by a message that names it, or nothing is lost by it.

        It is put back afterwards, unless it is a segment file that the started engine no longer refers to.
        """
        vanished = self._take_away(what)
        if vanished is None:
            return
        known = copy.deepcopy(self.ledger)
        is_open = False
        is_needed = True

        async def body(engine: Engine) -> None:
            nonlocal is_open, is_needed
            is_open = True
            try:
                await self._check(known, engine)
                if what in SEGMENT_FILES:
                    is_needed = refers_to(engine, vanished.path)
            finally:
                # However it went, nothing of it is made final by a clean stop.
                self.files.stop()
            raise CrashNow("looked at")

        refusal = ""
        try:
            self._start(body)
        except BrokenPromiseError as error:
            raise BrokenPromiseError(f"started without {vanished.path}: {error}") from error
        except (StorageError, BaseExceptionGroup) as error:
            refusal = "; ".join(str(leaf) for leaf in leaves(error) if isinstance(leaf, StorageError))
            if not refusal:
                raise
        if what in DIRECTORIES and self.ledger.has_acknowledged:
            require(not is_open, "a start takes an empty directory for its own", vanished.path, refusal)
        if refusal:
            # The next journal file may be what is named: it shows that one before it is missing.
            named = vanished.path if what in DIRECTORIES else posixpath.dirname(vanished.path)
            require(named in refusal, "a refusal does not name what is missing", vanished.path, refusal)
        # A segment file that the replay of the journal made superfluous was to be removed, and counts as removed.
        # Nothing tells the operator to put it back, and if it came back nothing would remove it.
        if refusal or (is_needed and not self.files.disk.exists(vanished.path)):
            self.files.disk.put_back(vanished)
        self.files = self.files.kill(everything_lost)

    def _take_away(self, what: str) -> Vanished | None:
        disk = self.files.disk
        if what in DIRECTORIES:
            path = f"{DATA}/{what.rstrip('/')}"
            if not self._files_below(path):
                return None
            return disk.vanish(path, leave_empty_directory=True)
        sort = what.rsplit(maxsplit=1)[-1]
        directory = {"journal": "journal", "log": "log", "parquet": "sealed"}[sort]
        found = [path for path in self._files_below(f"{DATA}/{directory}") if path.endswith(_LIST_OF[sort])]
        found = [path for path in found if sort != "journal" or "/journal-" in path]
        if not found:
            return None
        at = {"newest journal": -1, "oldest journal": 0}.get(what, self.seed % len(found))
        return disk.vanish(found[at])

    def _files_below(self, directory: str) -> list[str]:
        if not self.files.exists(directory):
            return []
        found: list[str] = []
        for name in self.files.listdir(directory):
            path = f"{directory}/{name}"
            try:
                self.files.listdir(path)
            except NotADirectoryError:
                found.append(path)
            else:
                found += self._files_below(path)
        return found

    # Backups

    def restore(self) -> None:
        """Restore the newest backup elsewhere and start from it."""
        known = self.ledger.backup
        if known is None:
            return
        target = f"/restored/{self.report.lives}"
        restore(self.files, BACKUP, target)

        async def body(engine: Engine) -> None:
            await self._check(copy.deepcopy(known), engine)

        self._start(body, data=target)
        self.files = self.files.kill(everything_lost)

    # The end

    def settle(self, *, closes: bool = False) -> None:
        """Start the engine, compare everything once it has settled, and kill it, or close it."""

        async def body(engine: Engine) -> None:
            rows = self.table.rows(self.files)
            await self._check(self.ledger, engine)
            await self.table.compare(rows, engine)
            await check_files(engine, self.files, DATA, most_rounds=SETTLED_AFTER)
            if not closes:
                self.files.stop()
                raise CrashNow("settled")

        self._start(body)
        if not closes:
            self.files = self.files.kill(everything_lost)

    def look(self) -> None:
        """Compare everything, offline and after a last start, and close cleanly."""
        self._check_offline()
        self.settle(closes=True)
        self.report.appends = self.ledger.number


def run_fates(
    fates: Sequence[Fate], seed: int, *, steps: int = STEPS, short_steps: bool = False, gathering: bool = False
) -> SequenceReport:
    """Run a list of fates, then lose the power once more and look.

    Args:
        fates: What happens.
        seed: Of everything else.
        steps: How much each client does in a life.
        short_steps: Long work of the engine lets others run after a few items each time.
        gathering: Closed segments are gathered into shared files.

    Raises:
        SequenceFailedError: A promise was broken.
    """
    machine = Machine(seed, steps, short_steps=short_steps, gathering=gathering)
    everything = [*fates, PowerLoss(zlib.crc32(b"%d" % seed) % 3), Life(end="close")]
    machine.report.fates = everything
    steps_done = 0
    try:
        for fate in everything:
            steps_done += 1
            _carry_out(machine, fate)
        steps_done += 1
        machine.look()
    except (Exception, BaseExceptionGroup) as problem:
        raise SequenceFailedError(
            seed, everything, steps_done, problem, short_steps=short_steps, gathering=gathering
        ) from problem
    return machine.report


def _carry_out(machine: Machine, fate: Fate) -> None:
    match fate:
        case Life():
            machine.live(fate)
        case PowerLoss(kind):
            machine.lose_power(kind)
        case Evict():
            machine.files.disk.evict()
        case LosePages():
            machine.files.disk.lose_pages()
        case SetClock(seconds):
            machine.clock.jump(seconds=seconds)
        case Vanish(what):
            machine.vanish(what)
        case Restore():
            machine.restore()
        case Settle():
            machine.settle()


def run_sequence(
    seed: int,
    *,
    steps: int = STEPS,
    clocks: bool = True,
    short_steps: bool | None = None,
    gathering: bool | None = None,
) -> SequenceReport:
    """Generate the sequence of failures of this seed and run it: `make torture` calls this with one seed after another.

    It takes about a second, uses no disk, no network and no thread, and patches trio's scheduler while it runs, so
    nothing else may use trio in the same process meanwhile.

    Args:
        seed: Of everything.
        steps: How much each client does in a life.
        clocks: Clocks jump, too.
        short_steps: Long work of the engine lets others run after a few items each time; the seed decides if None.
        gathering: Closed segments are gathered into shared files; the seed decides if None.

    Raises:
        SequenceFailedError: A promise was broken. Its text has the seed and the list of fates.
    """
    rng = random.Random(seed)
    fates = random_fates(rng, rng.randint(FEWEST, MOST), clocks=clocks)
    # From numbers of their own: what else a seed does stays as it was.
    fates = with_moves(random.Random(f"{seed}/moves"), fates)
    if short_steps is None:
        short_steps = bool(zlib.crc32(b"steps of %d" % seed) & 1)
    if gathering is None:
        gathering = bool(zlib.crc32(b"gathering of %d" % seed) & 1)
    return run_fates(fates, seed, steps=steps, short_steps=short_steps, gathering=gathering)
