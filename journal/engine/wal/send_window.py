"""When groups are sent to a log store, and those that are sent while the ones before them are not known to be durable.

Only sending runs ahead. Groups are finished, published and acknowledged one after the other, by the committer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final, Protocol

import trio

from journal.engine.wal.group import Group
from shards.segments.chunks import Readable

SEND_BYTES: Final = 256 << 10
"""A group of this size is sent at once, if the window has room."""

SEND_AFTER_S: Final = 0.05
"""A smaller group is sent when its oldest entry has waited for so long. A store that answers sooner gets as many
requests as with one group at a time: its groups are sent when the one before is done."""


class EarlyWriter(Protocol):
    """Sends groups ahead of those that it makes durable.

    Attributes:
        window: How many groups may be under way at a time.
        interval_s: Time between the beginnings of two groups that are not full, at least; 0 for as soon as possible.
    """

    @property
    def window(self) -> int: ...

    @property
    def interval_s(self) -> float: ...

    def begin_group(self, entries: Sequence[Readable], size_bytes: int, first_lsn: int, next_lsn: int) -> None:
        """Begin to send a group. It is made durable later, in its turn. On the event loop; must not block."""
        ...

    @property
    def reads_entries(self) -> bool:
        """Whether entries of a group that was begun may still be read before its turn to be made durable."""
        ...

    def abandon(self) -> None:
        """The engine has failed: read no entries from now on, whose memory may be used again."""
        ...

    def close(self) -> None:
        """Wait until nothing is sent any more."""
        ...


class SendWindow:
    """The groups that were sent ahead.

    Args:
        writer: Sends them.

    Attributes:
        sent: Groups after the one in flight, oldest first. One without entries only waits for those before it.
    """

    def __init__(self, writer: EarlyWriter) -> None:
        self._writer = writer
        self._most: Final = writer.window
        self._interval_s = writer.interval_s
        self._sent_at_s = float("-inf")
        self.sent: deque[Group] = deque()
        self._overdue: Group | None = None
        self._wake: tuple[Group, float] | None = None
        self._is_watching = trio.Event()

    @property
    def has_room(self) -> bool:
        """Whether one more group may be sent, while one is in flight."""
        return len(self.sent) < self._most - 1

    def is_due(self, group: Group) -> bool:
        """Whether the collecting group is to be sent though the one before it is not done."""
        return (
            bool(group.buffers) and (group.size_bytes >= SEND_BYTES or group is self._overdue) and not self._is_early()
        )

    def defers(self, group: Group) -> bool:
        """Whether the collecting group is to wait for the end of the interval, although all before it are done.

        It is sent then. A group that has nothing to write waits for nothing.
        """
        if not group.buffers or not self._is_early():
            return False
        self._wake_at(group, self._sent_at_s + self._interval_s)
        return True

    def hurry(self) -> None:
        """The collecting group is not deferred: the server needs the memory in which its entries lie."""
        self._sent_at_s = float("-inf")

    def defer_nothing(self) -> None:
        """No group is deferred from now on: the engine is about to stop."""
        self._interval_s = 0.0

    def _is_early(self) -> bool:
        return self._interval_s > 0 and perf_counter() < self._sent_at_s + self._interval_s

    def send(self, group: Group) -> None:
        """Begin to send a group, which has entries. With a window of one, `GroupWriter.write_group` does it alone."""
        if self._interval_s:
            self._sent_at_s = perf_counter()
        if self._most > 1:
            self._writer.begin_group(group.buffers, group.size_bytes, group.first_lsn, group.next_lsn)

    def watch(self, group: Group) -> None:
        """Have the collecting group sent ahead as soon as time alone makes it due."""
        if not group.buffers or self._most == 1:
            return
        at_s = self._sent_at_s + self._interval_s
        if group.size_bytes < SEND_BYTES and group is not self._overdue:
            at_s = max(at_s, group.taken_at_s + SEND_AFTER_S)
        elif not self._is_early():
            # It waits for room.
            return
        self._wake_at(group, at_s)

    def _wake_at(self, group: Group, at_s: float) -> None:
        if self._wake is None or self._wake[0] is not group or self._wake[1] != at_s:
            self._wake = group, at_s
            self._is_watching.set()

    def at_rest(self) -> list[Group]:
        """Groups that were sent, and of which no entries are read before their turn; none if one is not read yet."""
        return [] if self._writer.reads_entries else list(self.sent)

    def abandon(self) -> list[Group]:
        """Nothing will be finished any more. Returns the groups that were sent, and reads no entries of theirs."""
        self._writer.abandon()
        groups = list(self.sent)
        self.sent.clear()
        return groups

    async def run(self, kick: Callable[[], None]) -> None:
        """Call ``kick`` whenever a group is due because of its age or the interval, until cancelled."""
        while True:
            await self._is_watching.wait()
            self._is_watching = trio.Event()
            if self._wake is None:
                continue
            waked = group, at_s = self._wake
            await trio.sleep(max(0.0, at_s - perf_counter()))
            if self._wake is waked:
                self._wake = None
            if perf_counter() >= group.taken_at_s + SEND_AFTER_S:
                # If it was sent in the meantime, nothing is due: there is no other group that is the same object.
                self._overdue = group
            kick()
