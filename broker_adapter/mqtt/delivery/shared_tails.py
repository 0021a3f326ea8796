"""The tails of a broker: which exist, which sessions need them, and how to have few of them.

A target that the target of a tail covers needs no tail of its own; a new tail replaces those that it covers; with too
many targets, tails have wider filters, and narrower ones again when there are fewer targets.
Invariants, which consumers of tails with a `DedupWatermark` rely on:
    - A target that is needed is covered by a tail.
    - A new tail begins no later than the position up to which the other tails of one of its shards have handed out
      everything. So a tail never skips a record that another tail of the shard has not handed out yet.
    - `handed_out_lsn` is no lower than the lsn of any record that a tail has handed out. It may be ahead of
      `position`: records in memory mode are shown before others that are not on disk yet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.errors import LimitExceededError, StorageError
from broker_adapter.mqtt.delivery.tail import Audience, Tail
from broker_adapter.mqtt.delivery.tail_targets import ByFirstLevel, covering
from broker_adapter.mqtt.model.position import BEGINNING, Position, ReachedLsn
from broker_adapter.subscription import Delivery
from shards.topics.topic_filters import covers, overlap

_log = logging.getLogger(__name__)


class Need:
    """A target that sessions need; they share the object.

    Attributes:
        tail: The tail that covers it; None before there is one.
        count: Number of its users.
    """

    __slots__ = ("_reached_lsn", "count", "tail", "target")

    def __init__(self, target: str) -> None:
        self.target = target
        self.count = 0
        self.tail: Tail | None = None
        self._reached_lsn = ReachedLsn(0)

    @property
    def reached_lsn(self) -> ReachedLsn:
        """Everything of the target up to this lsn was handed out."""
        if self.tail is not None and self.tail.reached_lsn > self._reached_lsn:
            self._reached_lsn = self.tail.reached_lsn
        return self._reached_lsn

    def move(self, tail: Tail) -> None:
        """Replace the tail that covers it."""
        self._reached_lsn = self.reached_lsn
        self.tail = tail


class SharedTails:
    """The tails of a broker; see the module.

    Args:
        adapter: The store.
        audience: Gets what all of them bring.
        tasks: Nursery of the tails.
        max_count: Most targets that have a tail each.
        linger_s: How long a tail is kept that is not needed any more, in seconds.
        resumes: Tails that fail restart where they were.

    Attributes:
        position: The newest position that the store returned.
        handed_out_lsn: Highest lsn of a record that a tail has handed out.
        progress_count: Changes whenever the ``reached_lsn`` of a need may have changed.
    """

    def __init__(
        self,
        adapter: StorageAdapter,
        audience: Audience,
        tasks: trio.Nursery,
        *,
        max_count: int,
        linger_s: float,
        resumes: bool = True,
    ) -> None:
        self.position = BEGINNING
        self.handed_out_lsn = 0
        self.progress_count = 0
        self._adapter = adapter
        self._audience = audience
        self._tasks = tasks
        self._max_count = max_count
        self._linger_s = linger_s
        self._resumes = resumes
        self._tails: dict[str, Tail] = {}
        self._tails_by_level = ByFirstLevel[Tail]()
        self._needs: dict[str, Need] = {}
        self._needs_by_level = ByFirstLevel[Need]()
        self._waiting: dict[str, Need] = {}
        self._opening = trio.Lock()
        self._unneeded = trio.Event()

    def __len__(self) -> int:
        return len(self._tails)

    def __contains__(self, target: str) -> bool:
        return target in self._tails

    # What the sessions need

    async def need(self, targets: Iterable[str]) -> Sequence[Need]:
        """Cover targets with tails; call `release` with each result when it is not needed any more.

        Raises:
            StorageError: The store refuses a tail; none of them is needed then.
        """
        needs = [self._needs.get(target) or self._added(target) for target in targets]
        for need in needs:
            need.count += 1
            if not self._find_tail(need):
                self._waiting[need.target] = need
        try:
            if any(need.tail is None for need in needs):
                async with self._opening:
                    for need in needs:
                        if not self._find_tail(need):
                            await self._open_for(need)
        except BaseException:
            for need in needs:
                self.release(need)
            raise
        finally:
            for need in needs:
                if need.tail is not None or not need.count:
                    self._waiting.pop(need.target, None)
        return needs

    def _added(self, target: str) -> Need:
        need = self._needs[target] = Need(target)
        self._needs_by_level.add(target, need)
        return need

    def release(self, need: Need) -> None:
        """The caller does not need it any more."""
        need.count -= 1
        if not need.count:
            self._unneeded.set()

    def _find_tail(self, need: Need) -> bool:
        """Whether an existing tail covers the target; it is used then."""
        if need.tail is None:
            for tail in self._tails_by_level.which_may_cover(need.target):
                if covers(tail.target, need.target):
                    need.move(tail)
                    break
        return need.tail is not None

    async def _open_for(self, need: Need) -> None:
        """Open a tail for a need or, with too many targets, wider ones for all needs that wait for a tail."""
        if len(self._tails) + len(self._waiting) <= self._max_count:
            await self._open(need.target)
            return
        # Targets that come during the waits are not covered by what is wanted now: they are for the next call.
        others = list(self._waiting.values())
        wanted = ByFirstLevel[str]()
        for target in covering(self._needs, self._max_count):
            wanted.add(target, target)
        await self._open_one_of(wanted, need)
        for other in others:
            # Its own call raises the error, if it still waits then.
            with suppress(LimitExceededError):
                await self._open_one_of(wanted, other)

    async def _open_one_of(self, wanted: ByFirstLevel[str], need: Need) -> None:
        """Open a tail for that one of the wanted targets that covers a need, unless the need has a tail."""
        if need.tail is not None or not need.count:
            return
        target = next((one for one in wanted.which_may_cover(need.target) if covers(one, need.target)), need.target)
        if target.startswith("$") and len(self._tails) >= 2 * self._max_count:
            raise LimitExceededError(
                f"{target!r} would need a live feed of its own in addition to {len(self._tails)} others, twice "
                f"max_tails: subscribe to fewer first levels that begin with '$'"
            )
        await self._open(target)

    # The tails

    async def _open(self, target: str) -> None:
        """Open a tail; it replaces those that it covers."""
        others = [tail.reached_lsn for tail in self._tails.values() if overlap(tail.target, target)]
        tail = Tail(target, self, resumes=self._resumes)
        try:
            await self._tasks.start(tail.run, self._adapter, min(others, default=None))
        except BaseException:
            # It may have been opened nevertheless, if this task was cancelled.
            tail.end()
            raise
        self._tails[target] = tail
        self._tails_by_level.add(target, tail)
        for need in self._needs_by_level.which_it_may_cover(target):
            if covers(target, need.target) and (need.tail is None or covers(target, need.tail.target)):
                need.move(tail)
        for other in list(self._tails_by_level.which_it_may_cover(target)):
            if other is not tail and covers(target, other.target):
                self._close(other)
        self.progress_count += 1

    def _close(self, tail: Tail) -> None:
        tail.end()
        del self._tails[tail.target]
        self._tails_by_level.remove(tail.target)
        for need in self._needs_by_level.which_it_may_cover(tail.target):
            if need.tail is tail:
                # It is not needed now; `need` finds another tail when it is.
                need.tail = None

    async def run(self) -> None:
        """Close tails that are not needed any more, and replace tails that are wider than needed, until cancelled."""
        while True:
            await self._unneeded.wait()
            self._unneeded = trio.Event()
            await trio.sleep(self._linger_s)
            try:
                async with self._opening:
                    await self._tidy()
            except StorageError as error:
                _log.warning("tails that are wider than needed stay for now: %s", error)
                self._unneeded.set()
                await trio.sleep(max(1.0, self._linger_s))

    async def _tidy(self) -> None:
        for need in [need for need in self._needs.values() if not need.count]:
            del self._needs[need.target]
            self._needs_by_level.remove(need.target)
        # Half of the limit: closer to it, tails would alternate between wide and narrow.
        wanted = covering(self._needs, max(1, self._max_count // 2))
        for tail in list(self._tails.values()):
            if self._tails.get(tail.target) is not tail or tail.target in self._needs:
                continue
            if tail.target not in wanted:
                await self._make_narrower(tail, wanted)
            if not self._needed_of(tail):
                self._close(tail)

    async def _make_narrower(self, wide: Tail, wanted: list[str]) -> None:
        """Replace a tail by narrower ones for its needed targets, if these are few enough."""
        needed = self._needed_of(wide)
        narrower = [target for target in wanted if any(covers(target, one) for one in needed)]
        if not all(covers(wide.target, target) for target in narrower):
            return
        for target in narrower:
            if target not in self._tails:
                await self._open(target)
            narrow = self._tails[target]
            for need in self._needs_by_level.which_it_may_cover(target):
                if need.tail is wide and covers(target, need.target):
                    need.move(narrow)
            await trio.lowlevel.checkpoint()

    def _needed_of(self, tail: Tail) -> list[str]:
        needs = self._needs_by_level.which_it_may_cover(tail.target)
        return [need.target for need in needs if need.tail is tail and need.count]

    # Called by the tails

    def began(self, tail: Tail, start: Position) -> None:
        """See `Audience`."""
        self._note(start)
        self._audience.began(tail, start)

    def delivered(self, tail: Tail, delivery: Delivery) -> None:
        """See `Audience`."""
        # Also if the audience wants none of them, and they are not decoded.
        self.handed_out_lsn = max(self.handed_out_lsn, delivery.last_lsn)
        self._audience.delivered(tail, delivery)

    def progressed(self, tail: Tail, reached: Position) -> None:
        """See `Audience`."""
        self._note(reached)
        self._audience.progressed(tail, reached)

    def _note(self, position: Position) -> None:
        self.progress_count += 1
        self.note(position)

    def note(self, position: Position) -> None:
        """The store has returned this position."""
        self.position = max(self.position, position)
