"""Group subscriptions: several members share the records of a shard or filter, and each record is acknowledged.

`shards.subscriptions.group_assignment` decides which member holds which offsets of a shard. This module carries that
out: it reads records and queues them for members that have credit, and `journal.engine.subscribe.group_positions`
stores the group's position as the cursor ``group/<name>``. Records that a lost member held are read again for others,
so a record is delivered at least once.

A shard is handed out only to members that may get its records. While no member may, its records and the position of the
group there wait for one that may: who may not read a shard must not move a position in it either.

The cost depends on what is new, not on the number of shards: a shard is visited after it has published, after records
of it were acknowledged, or after a member that held records of it has left. Waiting shards are visited in turn.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial

import trio

from journal.engine.read.read_failures import ReadRetries
from journal.engine.read.reader import Reader
from journal.engine.subscribe.group_members import Member, Share
from journal.engine.subscribe.group_positions import GroupPositions
from journal.engine.time_slice import TimeSlice
from journal.engine.write.commands import Commands
from shards.errors import StorageError
from shards.segments.shard import Shard
from shards.subscriptions.events import Notice, Push
from shards.subscriptions.group_assignment import GroupAssignment, sticky_key
from shards.topics.names import group_cursor

_FORGOTTEN_AT_ONCE = 1000


class SharedGroup:
    """A group: its members, its shards, and the task that hands out records.

    Args:
        name: Its name.
        reader: Reads what is handed out.
        retries: Retries reads that failed because of a shortage.
        commands: Stores its positions.
        on_left: Called when a member has left.
        on_empty: Called when the last member has left.
        on_ended: Called when, after that, no work of the group is in progress any more.

    Attributes:
        cursor_name: Name of the cursor that holds its position in each shard.
        topic_filter: Its filter, if it has one.
    """

    def __init__(
        self,
        name: str,
        reader: Reader,
        retries: ReadRetries,
        commands: Commands,
        *,
        on_left: Callable[[], None],
        on_empty: Callable[[], None],
        on_ended: Callable[[], None],
    ) -> None:
        self._name = name
        self._reader = reader
        self._retries = retries
        self._commands = commands
        self._on_left = on_left
        self._on_empty = on_empty
        self._on_ended = on_ended
        self._members: dict[Member, None] = {}
        self._joined_count = self._changes_count = 0
        self._shares: dict[int, Share] = {}
        self._by_reference: dict[int, Share] = {}
        self._references = 0
        self._ready: deque[Share] = deque()
        # Shares to visit because a member joined or left.
        self._again: deque[dict[Share, None]] = deque()
        # Shares of which each member holds as much as it may.
        self._full: dict[Share, None] = {}
        self._broken: deque[Share] = deque()
        self._waiting_has_turn = False
        self._wake = trio.Event()
        self.cursor_name = group_cursor(name)
        self._positions = GroupPositions(commands, self.cursor_name)
        self.topic_filter: str | None = None

    def __len__(self) -> int:
        """Return the number of shards."""
        return len(self._shares)

    @property
    def is_over(self) -> bool:
        """Whether the last member has left."""
        return not self._members

    def statistics(self) -> dict[str, int]:
        """The number of its shards, of those that wait for a visit, and of positions that are not stored."""
        waiting = {*self._ready, *self._full, *(share for shares in self._again for share in shares)}
        return {
            "shards": len(self._by_reference),
            "waiting": len([share for share in waiting if self._shares.get(share.shard.shard_id) is share]),
            "unstored": len(self._positions),
        }

    def attach(self, shard: Shard, offset: int) -> None:
        """Add a shard, beginning at this offset."""
        if shard.shard_id in self._shares or shard.deleted or not self._members:
            return
        # The group stores a position as soon as it has a member for a shard, so that a later start does not begin
        # elsewhere.
        stored = -1 if self._commands.get_cursor(shard.name, self.cursor_name) is None else offset
        self._references += 1
        share = Share(shard, self._references, max(offset, shard.start_offset), stored)
        self._shares[shard.shard_id] = self._by_reference[share.reference] = share
        shard.add_listener(self._published)
        self._moved(share)
        if share.first_offset < shard.published_offset:
            self._queue(share)

    def _published(self, shard: Shard) -> None:
        share = self._shares.get(shard.shard_id)
        if share is None:
            return
        if shard.damage:
            # Reported and removed even while no member has credit.
            self._broken.append(share)
            self._wake.set()
        else:
            self._queue(share)

    def _queue(self, share: Share) -> None:
        if not share.queued:
            share.queued = True
            self._ready.append(share)
            self._wake.set()

    def _try_again(self, share: Share) -> None:
        if self._shares.get(share.shard.shard_id) is share:
            self._queue(share)

    def wake(self) -> None:
        """Wake the task: a member has credit."""
        self._wake.set()

    def join(
        self,
        on_ready: Callable[[], None],
        credit_bytes: Callable[[], int],
        may_deliver: Callable[[str], bool] | None,
    ) -> Member:
        """Add a member."""
        self._joined_count += 1
        self._changes_count += 1
        member = Member(self, self._joined_count, on_ready, credit_bytes, may_deliver)
        # It may take what no other member can; in a sticky group a part of the waiting records may be for it.
        self._visit_waiting_again()
        self._members[member] = None
        self.wake()
        return member

    def leave(self, member: Member) -> None:
        """Remove a member; the last one ends the group, whose positions stay stored."""
        if member not in self._members:
            return
        del self._members[member]
        self._changes_count += 1
        for shares in (member.holding, member.waiting, self._full):
            self._visit_again(shares)
        member.holding, member.waiting, self._full = {}, OrderedDict(), {}
        self._on_left()
        if not self._members:
            self._on_empty()
        self.wake()

    def rights_changed(self, member: Member) -> None:
        """Note that a member may get records of other shards than before; what it lost goes to others."""
        if member not in self._members:
            return
        self._changes_count += 1
        lost = {share: None for share in member.holding if not member.may_get(share.shard)}
        for share in lost:
            del member.holding[share]
        self._visit_again(lost)
        self._visit_waiting_again()
        self.wake()

    def _visit_waiting_again(self) -> None:
        self._visit_again(self._full)
        self._full = {}
        for member in self._members:
            self._visit_again(member.waiting)
            member.waiting = OrderedDict()

    def _visit_again(self, shares: dict[Share, None]) -> None:
        if shares:
            self._again.append(shares)

    def acknowledge(self, member: Member, reference: int, first_offset: int, next_offset: int) -> None:
        """Note that a member has processed records; late acknowledgements and those of others' records are ignored."""
        share = self._by_reference.get(reference)
        if share is None or share.assignment is None or first_offset >= next_offset or not member.may_get(share.shard):
            return
        if share.assignment.acknowledge(member, first_offset, next_offset):
            self._positions.moved(share)
        if share in member.holding and not share.assignment.is_held_by(member):
            del member.holding[share]
        if share.blocked:
            self._queue(share)

    # The task

    async def run(self) -> None:
        """Hand out records until the last member has left."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._positions.run)
                await self._hand_out_all()
                self._positions.finish()
            await self._forget_all()
        finally:
            for share in self._shares.values():
                share.shard.remove_listener(self._published)
            for held in (self._shares, self._by_reference, self._ready, self._again, self._full, self._broken):
                held.clear()
            self._on_ended()

    async def _hand_out_all(self) -> None:
        step = TimeSlice()
        while self._members:
            self._wake = trio.Event()
            while (share := self._next()) is not None:
                await self._visit(share)
                # Records in memory are handed out without a wait, so other tasks must get time in between.
                if step.is_over:
                    await step.rest()
            if self._members:
                await self._wake.wait()

    async def _forget_all(self) -> None:
        """Release the shards in steps, as there may be many."""
        while self._shares:
            for _ in range(min(_FORGOTTEN_AT_ONCE, len(self._shares))):
                _, share = self._shares.popitem()
                del self._by_reference[share.reference]
                share.shard.remove_listener(self._published)
            await trio.lowlevel.checkpoint()

    def _next(self) -> Share | None:
        """The share to visit now; None if no member can take anything, or if there is nothing to hand out."""
        if self._broken:
            return self._broken.popleft()
        if not any(member.has_credit() for member in self._members):
            return None
        self._waiting_has_turn = not self._waiting_has_turn
        if self._waiting_has_turn and (share := self._next_waiting()) is not None:
            return share
        while self._again:
            shares = self._again[0]
            if shares:
                return shares.popitem()[0]
            self._again.popleft()
        if self._ready:
            share = self._ready.popleft()
            share.queued = False
            return share
        return self._next_waiting()

    def _next_waiting(self) -> Share | None:
        """A share that waited for the credit of a member that has some now."""
        for member in self._members:
            if member.waiting and member.has_credit():
                return member.waiting.popitem(last=False)[0]
        return None

    async def _visit(self, share: Share) -> None:
        """Hand out the next batch of a shard to the next member in turn, if there is one."""
        shard = share.shard
        if self._shares.get(shard.shard_id) is not share:
            return
        try:
            shard.check_usable()
        except StorageError as error:
            self._end(share, error)
            return
        self._bring_up_to_date(share)
        first = share.wanted_offset
        if first >= shard.published_offset:
            return
        assignment = self._assignment_of(share)
        if not self._may_give(share, assignment):
            return
        try:
            extent = await self._reader.read(shard, first, 1)
        except StorageError as error:
            if shard.start_offset > first and not shard.damage:
                # It was trimmed in the meantime.
                self._queue(share)
            elif error.retriable:
                self._retries.later(error, partial(self._try_again, share))
            else:
                # The group cannot continue in this shard; its other users get such errors from their own reads.
                self._end(share, error)
            return
        # While the read waited, records may have been trimmed, and members may have joined and left.
        self._bring_up_to_date(share)
        if assignment.wanted().first_offset == first and (member := self._taker(share, assignment)) is not None:
            given = assignment.assign(member, extent.next_offset)
            member.holding[share] = None
            member.give(
                share, Push(share.reference, given.first_offset, given.next_offset, extent.buffers, extent.size_bytes)
            )
        if assignment.wanted().first_offset < shard.published_offset:
            self._queue(share)

    def _assignment_of(self, share: Share) -> GroupAssignment[Member]:
        if share.assignment is None:
            share.assignment = GroupAssignment(share.first_offset, sticky_key=sticky_key(self._name, share.shard.name))
            self._tell_members(share, share.assignment)
        return share.assignment

    def _bring_up_to_date(self, share: Share) -> None:
        """Apply all joins, leaves and trims since the last visit to the assignment of a share."""
        start_offset = share.shard.start_offset
        assignment = share.assignment
        if assignment is None:
            if share.first_offset < start_offset:
                share.first_offset = start_offset
                self._moved(share)
            return
        self._tell_members(share, assignment)
        if assignment.wanted().first_offset < start_offset and assignment.skip_to(start_offset):
            self._moved(share)

    def _moved(self, share: Share) -> None:
        """Store the position of a share, unless no member may get its records."""
        if any(member.may_get(share.shard) for member in self._members):
            self._positions.moved(share)

    def _tell_members(self, share: Share, assignment: GroupAssignment[Member]) -> None:
        if share.changes_count == self._changes_count:
            return
        share.changes_count = self._changes_count
        known = assignment.members
        entitled = [member for member in self._members if member.may_get(share.shard)]
        for member in known:
            if member not in entitled:
                assignment.leave(member)
        for member in entitled:
            if member not in known:
                assignment.join(member, member.number)
        if entitled:
            # Without effect if it is stored already.
            self._positions.moved(share)

    def _may_give(self, share: Share, assignment: GroupAssignment[Member]) -> bool:
        """Whether a member can take records of a share now; if not, the share is visited again when one can."""
        self._full.pop(share, None)
        candidates = assignment.members_with_room()
        share.blocked = not any(member.has_credit() for member in candidates)
        if not share.blocked:
            return True
        for member in candidates:
            member.waiting[share] = None
        if not candidates:
            self._full[share] = None
        return False

    def _taker(self, share: Share, assignment: GroupAssignment[Member]) -> Member | None:
        return next((member for member in assignment.members_with_room() if member.has_credit()), None)

    def _end(self, share: Share, error: StorageError) -> None:
        """Notify the members that nothing more comes from a shard, and why, and remove it; the other shards go on."""
        shard = share.shard
        del self._shares[shard.shard_id]
        del self._by_reference[share.reference]
        shard.remove_listener(self._published)
        self._full.pop(share, None)
        self._positions.forget(share)
        event = "removed" if shard.deleted else "error"
        notice = Notice(event, share.reference, shard.shard_id, shard.name, error=error)
        for member in self._members:
            member.end(share, notice)
