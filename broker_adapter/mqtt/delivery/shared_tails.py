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
from collections import Counter
from collections.abc import Iterable
from typing import Final

import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.errors import LimitExceededError, StorageError
from broker_adapter.mqtt.delivery.tail import Audience, Tail
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
        self._needs: dict[str, Need] = {}
        self._opening = trio.Lock()
        self._unneeded = trio.Event()

    def __len__(self) -> int:
        return len(self._tails)

    def __contains__(self, target: str) -> bool:
        return target in self._tails

    # What the sessions need

    async def need(self, target: str) -> Need:
        """Cover a target with a tail; call `release` with the result when it is not needed any more.

        Raises:
            StorageError: The store refuses the tail.
        """
        need = self._needs.get(target)
        if need is None:
            need = self._needs[target] = Need(target)
        need.count += 1
        try:
            if not self._find_tail(need):
                async with self._opening:
                    if not self._find_tail(need):
                        await self._open_for(need)
        except BaseException:
            self.release(need)
            raise
        return need

    def release(self, need: Need) -> None:
        """The caller does not need it any more."""
        need.count -= 1
        if not need.count:
            self._unneeded.set()

    def _find_tail(self, need: Need) -> bool:
        """Whether an existing tail covers the target; it is used then."""
        if need.tail is None:
            for tail in self._tails.values():
                if covers(tail.target, need.target):
                    need.move(tail)
                    break
        return need.tail is not None

    async def _open_for(self, need: Need) -> None:
        target = need.target
        if len(self._tails) >= self._max_count:
            wanted = covering(self._needs, self._max_count)
            target = next((one for one in wanted if covers(one, target)), target)
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
        for need in self._needs.values():
            if covers(target, need.target) and (need.tail is None or covers(target, need.tail.target)):
                need.move(tail)
        for other in list(self._tails.values()):
            if other is not tail and covers(target, other.target):
                self._close(other)
        self.progress_count += 1

    def _close(self, tail: Tail) -> None:
        tail.end()
        del self._tails[tail.target]
        for need in self._needs.values():
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
        self._needs = {target: need for target, need in self._needs.items() if need.count}
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
            for need in self._needs.values():
                if need.tail is wide and covers(target, need.target):
                    need.move(narrow)
            await trio.lowlevel.checkpoint()

    def _needed_of(self, tail: Tail) -> list[str]:
        return [need.target for need in self._needs.values() if need.tail is tail and need.count]

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


EVERYTHING: Final = "#"

_COMPARED: Final = 4


def first_level_of(target: str) -> str:
    """A filter that covers a target and everything else below its first level."""
    first = target.split("/", 1)[0]
    return EVERYTHING if first in ("+", "#") else f"{first}/#"


def without_covered(targets: Iterable[str]) -> list[str]:
    """The targets that no other one covers, in a fixed order."""
    kept: list[str] = []
    for target in sorted(set(targets), key=lambda one: (one.count("/"), one)):
        if not any(covers(wider, target) for wider in kept):
            kept = [one for one in kept if not covers(target, one)]
            kept.append(target)
    return kept


def covering(targets: Iterable[str], max_count: int) -> list[str]:
    """Filters that cover all targets, in a fixed order: the targets themselves, or fewer and wider ones.

    First levels with many targets are widened first. Targets that begin with ``$`` are matched by no filter that begins
    with a wildcard: each keeps a filter of its own, so there may be more than ``max_count`` of these.
    """
    wanted = set(targets)
    if EVERYTHING in wanted:
        wanted = {one for one in wanted if one == EVERYTHING or one.startswith("$")}
    # With very many targets the comparison of all pairs is skipped: they are widened together.
    if len(wanted) <= _COMPARED * max_count:
        wanted = set(without_covered(wanted))
    if len(wanted) > max_count:
        wanted = _widened(wanted, len(wanted) - max_count)
    if len(wanted) > max_count:
        wanted = {first_level_of(one) if one.startswith("$") else EVERYTHING for one in wanted}
    return without_covered(wanted)


def _widened(targets: set[str], excess: int) -> set[str]:
    counts = Counter(map(first_level_of, targets))
    widened: set[str] = set()
    for wide, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if excess <= 0 or count < 2:
            break
        widened.add(wide)
        excess -= count - 1
    return {wide if (wide := first_level_of(target)) in widened else target for target in targets}
