"""Plays a history on a real data directory: lives of an engine that end in order or in a crash, and a model beside it.

A killed process leaves what its files hold at that moment, written by it or not yet synced. So a crash is a copy of the
directory while the engine has it open; the next life goes on from the copy. In the middle of a step the copy is made
just before one of its file operations, while all others are held back.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from broker_adapter.engines.embedded import EmbeddedAdapter
from journal.engine import Engine, Environment, open_engine, open_rocks_store
from journal.settings.server import ConversionConfig
from shards.format.record import Record
from shards.model import AckLevel, Mode, SegmentKind, ShardConfig, ShardInfo
from shards.seams.clock import ManualClock
from shards.seams.os_file_system import OsFileSystem
from tests.crash.simulation import QUIET
from tests.patience import PATIENCE_S
from tests.simulation.inline import InlineConverter
from tests.spark.history_model import Kept, ShardModel

_CONFIG = attrs.evolve(QUIET, shards=attrs.evolve(QUIET.shards, memory_max_bytes=1 << 30))


@attrs.frozen
class _AtOnce(ConversionConfig):
    """Closed segments are gathered sooner than a configuration file can say; none is closed by age."""

    @property
    def gather_after_s(self) -> float:
        return 0.01


_GATHERING = attrs.evolve(_CONFIG, conversion=_AtOnce(max_age_s=86_400, delta_grace_s=0))
_CHANGES = {
    *("open", "open_directory", "mkdir", "rename", "remove", "remove_directory", "sync_directory", "sync_all"),
    *("pwritev", "truncate", "fdatasync", "fsync", "flush"),
}


class _Watch:
    """Counts what changes files; can do something just before one of these operations, with all others held back."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._left = 0
        self._then: Callable[[], None] = lambda: None

    def before(self, operations: int, then: Callable[[], None]) -> None:
        """Call ``then`` before operation number ``operations`` from now on, counted from 1."""
        self._left, self._then = operations, then

    def meanwhile(self, work: Callable[[], None]) -> None:
        """Do something with all these operations held back, and nothing any more before a later one."""
        with self._lock:
            self._left = 0
            work()

    def watched(self, target: Any) -> Any:
        """The same file system, file or store, its operations counted."""
        return _Watched(target, self)

    def call(self, work: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        with self._lock:
            if self._left:
                self._left -= 1
                if not self._left:
                    self._then()
            return work(*arguments, **keywords)


class _Watched:
    def __init__(self, target: Any, watch: _Watch) -> None:
        self._target = target
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name not in _CHANGES:
            return found

        def call(*arguments: Any, **keywords: Any) -> Any:
            result = self._watch.call(found, *arguments, **keywords)
            return self._watch.watched(result) if name in ("open", "open_directory") else result

        return call


@attrs.frozen
class Step(ABC):
    """Something that clients do."""

    @abstractmethod
    async def take(self, player: Player) -> None:
        """Do it and note it in the player's model."""


@attrs.frozen
class Restart:
    """The engine is closed in order.

    Attributes:
        look: Whether the directory is read before an engine opens it again.
    """

    look: bool = False


@attrs.frozen
class Crash:
    """The engine's process is killed.

    Attributes:
        during: What is under way; nothing if None.
        operation: Before which file operation of that; behind all of them if there are fewer.
        look: As in `Restart`. What is there is not known beforehand if something was under way; then not.
    """

    during: Step | None = None
    operation: int = 0
    look: bool = False


class Player:
    """Plays steps.

    Args:
        place: For the data directory and its copies.
        look: Called with the player when the directory is at rest, where the history says so.

    Attributes:
        shards: The model, by name.
        directory: The data directory, as it is now.
        adapter: To the open engine.
        engine: The open engine.
    """

    adapter: EmbeddedAdapter
    engine: Engine

    def __init__(self, place: Path, look: Callable[[Player], None]) -> None:
        self.shards: dict[str, ShardModel] = {}
        self.directory = place / "data"
        self.clock = ManualClock()
        self._config = _CONFIG
        self._place = place
        self._look = look
        self._copies = itertools.count(1)
        # What a crash may leave at least, if a step was under way.
        self._floor: dict[str, ShardModel] | None = None

    def play(self, steps: Sequence[Step | Restart | Crash]) -> None:
        """Play them all; the directory is at rest afterwards."""
        waiting = deque(steps)
        if any(isinstance(step.during if isinstance(step, Crash) else step, Gather) for step in steps):
            # From here on logs that are closed do not stay.
            self._config = _GATHERING
        while True:
            ending = trio.run(self._live, waiting)
            self.lose_memory()
            if ending is not None and ending.look and self._floor is None:
                self._look(self)
            if ending is None or (not waiting and self._floor is None):
                return

    async def _live(self, waiting: deque[Step | Restart | Crash]) -> Restart | Crash | None:
        watch = _Watch()
        files = watch.watched(OsFileSystem())
        async with (
            open_engine(
                str(self.directory),
                self._config,
                Environment(
                    files=files,
                    clock=self.clock,
                    open_store=lambda path: watch.watched(open_rocks_store(path)),
                ),
                # Small row groups: parts are in several, and several parts in one.
                make_converter=lambda: InlineConverter(files, self.clock.now_us, row_group_bytes=1000),
            ) as self.engine,
            EmbeddedAdapter(self.engine) as self.adapter,
        ):
            await self._settle()
            while waiting:
                step = waiting.popleft()
                self.clock.advance(microseconds=1000)
                if isinstance(step, Restart):
                    return step
                if isinstance(step, Crash):
                    await self._crash(step, watch)
                    return step
                await step.take(self)
        return None

    async def _crash(self, crash: Crash, watch: _Watch) -> None:
        """Copy the directory; the engine goes on in the one that is left behind."""
        target = self._place / f"copy-{next(self._copies)}"

        def copy() -> None:
            self._floor = {name: shard.copy() for name, shard in self.shards.items()}
            _copy(self.directory, target)

        def copy_at_last() -> None:
            if not target.exists():
                copy()
                # Nothing is under way any more.
                self._floor = None

        if crash.during is not None:
            watch.before(crash.operation, copy)
            await crash.during.take(self)
        watch.meanwhile(copy_at_last)
        self.directory = target

    def lose_memory(self) -> None:
        """Records in memory are gone with the engine."""
        for shard in itertools.chain(self.shards.values(), (self._floor or {}).values()):
            shard.kept = {offset: kept for offset, kept in shard.kept.items() if not kept.in_memory}

    async def _settle(self) -> None:
        """Look up what a start cannot but decide by itself, and require that it is one of the possible."""
        infos = {info.name: info for info in await self.adapter.list_shards("#")}
        floor, after = self._floor, self.shards
        self._floor = None
        self.shards = {}
        for name in {*infos, *after, *(floor or {})}:
            least, most = (after if floor is None else floor).get(name), after.get(name)
            found = self._settled(infos.get(name), least, most)
            if found is not None:
                self.shards[name] = found

    def _settled(self, info: ShardInfo | None, least: ShardModel | None, most: ShardModel | None) -> ShardModel | None:
        if info is None:
            assert least is None or most is None or least.shard_id != most.shard_id, f"{least} is gone"
            return None
        known = next((shard for shard in (most, least) if shard and shard.shard_id == info.shard_id), None)
        assert known is not None, f"this shard was not created: {info}"
        lower, upper = (
            (least, most) if least and most and least.shard_id == most.shard_id else (known.copy(), known.copy())
        )
        assert info.start_offset in (lower.start, upper.start), (info, lower, upper)
        assert info.config.mode in (lower.mode, upper.mode), (info, lower, upper)
        assert info.next_offset >= lower.end, (info, lower)
        assert info.next_offset <= upper.end or upper.ever_in_memory, (info, upper)
        return attrs.evolve(
            upper,
            start=info.start_offset,
            mode=info.config.mode,
            end=info.next_offset,
            kept={offset: kept for offset, kept in upper.kept.items() if offset < info.next_offset},
        )


def _copy(directory: Path, target: Path) -> None:
    """Copy a data directory; of the views' store, which merges its files when it likes, a moment without change."""
    shutil.copytree(directory, target, ignore=lambda _, names: {"state"}.intersection(names))
    while True:
        # The store's merging removes a file between its name and its size, or between its name and its copy.
        with contextlib.suppress(shutil.Error, FileNotFoundError):
            before = _sizes(directory / "state")
            shutil.copytree(directory / "state", target / "state")
            if _sizes(directory / "state") == before:
                return
        shutil.rmtree(target / "state", ignore_errors=True)


def _sizes(directory: Path) -> dict[str, int]:
    with os.scandir(directory) as found:
        return {entry.name: entry.stat().st_size for entry in found}


# What clients do


@attrs.frozen
class Append(Step):
    """Append batches to a shard, which is made if it is not there."""

    shard: str
    batches: tuple[tuple[Record, ...], ...]

    async def take(self, player: Player) -> None:
        shard = await _made(player, self.shard)
        for batch in self.batches:
            player.clock.advance(microseconds=10)
            append_time_us = player.clock.now_us()
            got = await player.adapter.append(self.shard, batch)
            assert got.base_offset == shard.end
            assert (got.level is AckLevel.MEMORY) == (shard.mode is Mode.MEMORY)
            kept = [Kept(record, append_time_us, got.level is AckLevel.MEMORY) for record in batch]
            shard.kept.update(enumerate(kept, got.base_offset))
            shard.end += len(batch)


async def _made(player: Player, name: str) -> ShardModel:
    if name not in player.shards:
        info = await player.adapter.create_shard(name, ShardConfig(mode=Mode.FILE))
        player.shards[name] = ShardModel(info.shard_id)
    return player.shards[name]


@attrs.frozen
class Convert(Step):
    """Make Parquet of all that a shard has in files; of all shards if none is named."""

    shard: str = ""

    async def take(self, player: Player) -> None:
        for name, shard in player.shards.items():
            if self.shard in ("", name):
                info = await player.adapter.convert(name)
                for segment in info.segments:
                    is_trimmed = segment.next_offset <= max(segment.base_offset, shard.start)
                    assert segment.kind is not SegmentKind.LOG or not segment.closed or is_trimmed, info


@attrs.frozen
class Gather(Step):
    """Put what all shards have in files into shared files, and rewrite those files that are mostly dead."""

    async def take(self, player: Player) -> None:
        for name in player.shards:
            await player.adapter.roll(name)
        with trio.fail_after(PATIENCE_S):
            while await self._has_logs(player):
                # It looks by itself too, but seldom.
                player.engine.parts.conversion.wake()
                await trio.sleep(0.005)
        with trio.fail_after(PATIENCE_S):
            while True:
                await player.engine.parts.checkpointer.checkpoint()
                if not any(0 < each.live_records * 2 < each.record_count for each in player.engine.parts.views.files):
                    return
                player.engine.parts.conversion.wake()
                await trio.sleep(0.005)

    async def _has_logs(self, player: Player) -> bool:
        for name, shard in player.shards.items():
            info = await player.adapter.describe_shard(name)
            for segment in info.segments:
                if segment.kind is SegmentKind.LOG and segment.next_offset > max(segment.base_offset, shard.start):
                    return True
        return False


@attrs.frozen
class Sweep(Step):
    """Wait until the files of which nothing is live are gone."""

    async def take(self, player: Player) -> None:
        parts = player.engine.parts
        sealed = player.directory / "sealed"
        with trio.fail_after(PATIENCE_S):
            while True:
                await parts.checkpointer.checkpoint()
                live = {each.path(str(sealed)) for each in parts.views.files if each.live_records}
                if live == set(map(str, sealed.glob("date=*/*.parquet"))):
                    return
                parts.conversion.wake()
                await trio.sleep(0.005)


@attrs.frozen
class Close(Step):
    """Close a shard's segment, which stays a log."""

    shard: str

    async def take(self, player: Player) -> None:
        if self.shard in player.shards:
            await player.adapter.roll(self.shard)


@attrs.frozen
class Trim(Step):
    """Trim a share of a shard's offsets, or up to one of the borders between its segments."""

    shard: str
    share: float
    to_border: bool = False

    async def take(self, player: Player) -> None:
        shard = player.shards.get(self.shard)
        if shard is None:
            return
        target = round(shard.start + (shard.end - shard.start) * self.share)
        if self.to_border:
            info = await player.adapter.describe_shard(self.shard)
            ends = [max(shard.start, segment.next_offset) for segment in info.segments]
            target = ends[round((len(ends) - 1) * self.share)] if ends else shard.start
        assert (await player.adapter.trim(self.shard, target)).start_offset == target
        shard.start = target


@attrs.frozen
class Delete(Step):
    """Delete a shard; perhaps to make one of the same name."""

    shard: str
    again: bool

    async def take(self, player: Player) -> None:
        if self.shard in player.shards:
            await player.adapter.delete_shard(self.shard)
            del player.shards[self.shard]
        if self.again:
            await _made(player, self.shard)


@attrs.frozen
class SwitchMode(Step):
    """Put a shard into the other mode."""

    shard: str

    async def take(self, player: Player) -> None:
        shard = await _made(player, self.shard)
        mode = Mode.FILE if shard.mode is Mode.MEMORY else Mode.MEMORY
        shard.ever_in_memory = True
        assert (await player.adapter.set_mode(self.shard, mode)).config.mode is mode
        shard.mode = mode


@attrs.frozen
class Checkpoint(Step):
    """Write everything into files, and perhaps save the views, after which the journal starts again."""

    whole: bool

    async def take(self, player: Player) -> None:
        if self.whole:
            await player.engine.parts.checkpointer.checkpoint()
        else:
            await player.engine.parts.checkpointer.flush()
