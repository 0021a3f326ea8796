"""Group subscriptions: several members share the records of a shard or filter, and each record is acknowledged.

Which member holds which offsets is decided by `shards.group_assignment`; here its decisions are carried out: records
read and handed to members that have credit, the group's position stored as the cursor ``group/<name>``. What a lost
member held is read again for the others, so a record is delivered at least once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from journal.control import Control
from journal.reader import Reader
from shards.errors import StorageError
from shards.group_assignment import GroupAssignment, sticky_key
from shards.pushes import Notice, Push
from shards.shard import Shard


class Member:
    """One member's end of a group subscription; the same shape as a `Subscription`."""

    def __init__(self, group: SharedGroup, on_ready: Callable[[], None], credit_bytes: Callable[[], int]) -> None:
        self._group = group
        self._on_ready = on_ready
        self._queue: deque[Push | Notice] = deque()
        self._announced: set[int] = set()
        self._credit_bytes = credit_bytes
        self._queued_bytes = 0
        self.topic_filter: str | None = None

    def has_credit(self) -> bool:
        """Whether it may be given more: what it has not taken yet counts as taken."""
        return self._credit_bytes() > self._queued_bytes

    @property
    def has_more(self) -> bool:
        """Whether `take` gives something."""
        return bool(self._queue)

    def give(self, share: _Share, push: Push) -> None:
        """Queue records that this member now holds."""
        if share.reference not in self._announced:
            self._announced.add(share.reference)
            self._queue.append(Notice("added", share.reference, share.shard.shard_id, share.shard.name))
        self._queue.append(push)
        self._queued_bytes += push.size_bytes
        self._on_ready()

    def notify(self, notice: Notice) -> None:
        """Queue news about a shard."""
        self._queue.append(notice)
        self._on_ready()

    async def take(self, max_bytes: int) -> Push | Notice | None:
        """The next push or notice, None when there is none now."""
        if not self._queue:
            return None
        item = self._queue.popleft()
        if isinstance(item, Push):
            self._queued_bytes -= item.size_bytes
        return item

    def acknowledge(self, reference: int, first_offset: int, next_offset: int) -> None:
        """The member is done with these records."""
        self._group.acknowledge(self, reference, first_offset, next_offset)

    def credit_changed(self) -> None:
        """The owner can take more."""
        self._group.wake()

    def close(self) -> None:
        """Leave the group; what the member held goes to the others."""
        self._queue.clear()
        self._group.leave(self)


class _Share:
    """One shard of a group."""

    __slots__ = ("assignment", "committing", "reference", "shard", "stored_offset")

    def __init__(self, shard: Shard, reference: int, offset: int, stored_offset: int, group: str) -> None:
        self.shard = shard
        self.reference = reference
        self.assignment: GroupAssignment[Member] = GroupAssignment(offset, sticky_key=sticky_key(group, shard.name))
        self.stored_offset = stored_offset
        self.committing = False


class SharedGroup:
    """A group: its members, its shards, and the task that hands out records.

    Attributes:
        cursor_name: Name of the cursor that holds its position in each shard.
        topic_filter: Its filter, if it has one.
    """

    def __init__(
        self,
        name: str,
        reader: Reader,
        control: Control,
        *,
        on_left: Callable[[], None],
        on_empty: Callable[[], None],
    ) -> None:
        self._name = name
        self._reader = reader
        self._control = control
        self._on_left = on_left
        self._on_empty = on_empty
        self._members: list[Member] = []
        self._shares: dict[int, _Share] = {}
        self._by_reference: dict[int, _Share] = {}
        self._wake = trio.Event()
        self.cursor_name = f"group/{name}"
        self.topic_filter: str | None = None

    def attach(self, shard: Shard, offset: int) -> None:
        """Include a shard from this offset on."""
        if shard.shard_id in self._shares:
            return
        # A group has a stored position from the moment it meets a shard: a later start must not begin elsewhere.
        stored = -1 if self._control.get_cursor(shard.name, self.cursor_name) is None else offset
        share = _Share(shard, len(self._by_reference) + 1, max(offset, shard.start_offset), stored, self._name)
        for member in self._members:
            share.assignment.join(member)
        self._shares[shard.shard_id] = self._by_reference[share.reference] = share
        shard.add_listener(self._published)
        self.wake()

    def _published(self, shard: Shard) -> None:
        self._wake.set()

    def wake(self) -> None:
        """Have the task look again: new records, credit, members or acknowledgements."""
        self._wake.set()

    def join(self, on_ready: Callable[[], None], credit_bytes: Callable[[], int]) -> Member:
        """Take a member in."""
        member = Member(self, on_ready, credit_bytes)
        self._members.append(member)
        for share in self._shares.values():
            share.assignment.join(member)
        self.wake()
        return member

    def leave(self, member: Member) -> None:
        """Let a member go; the last one ends the group, whose position stays."""
        if member not in self._members:
            return
        self._members.remove(member)
        for share in self._shares.values():
            share.assignment.leave(member)
        self._on_left()
        if not self._members:
            self._on_empty()
        self.wake()

    def acknowledge(self, member: Member, reference: int, first_offset: int, next_offset: int) -> None:
        """Note that a member is done with records; late or foreign acknowledgements count for nothing."""
        share = self._by_reference.get(reference)
        if share is not None and first_offset < next_offset:
            share.assignment.acknowledge(member, first_offset, next_offset)
            self.wake()

    async def run(self) -> None:
        """Hand out records until the last member has left."""
        try:
            async with trio.open_nursery() as nursery:
                while self._members:
                    self._wake = trio.Event()
                    progress = False
                    for share in tuple(self._shares.values()):
                        self._store_position(share, nursery)
                        progress = await self._hand_out(share) or progress
                    if not progress:
                        await self._wake.wait()
                    else:
                        # What lies in memory is handed out without a wait: others have their turn in between.
                        await trio.lowlevel.checkpoint()
                for share in self._shares.values():
                    self._store_position(share, nursery)
        finally:
            for share in self._shares.values():
                share.shard.remove_listener(self._published)

    async def _hand_out(self, share: _Share) -> bool:
        """Give the next batch of a shard to the member whose turn it is; False when there is nobody or nothing."""
        shard, assignment = share.shard, share.assignment
        try:
            shard.check_usable()
        except StorageError as error:
            self._end(share, error)
            return True
        if assignment.wanted().first_offset < shard.start_offset:
            assignment.skip_to(shard.start_offset)
        first = assignment.wanted().first_offset
        if first >= shard.published_offset or not any(member.has_credit() for member in self._members):
            return False
        try:
            extent = await self._reader.read(shard, first, 1)
        except StorageError as error:
            if shard.start_offset > first:
                return True
            # The group cannot go on in this shard; others who use it meet what is wrong for themselves, or do not.
            self._end(share, error)
            return True
        # The read may have waited: the range may be somebody's by now, and members may have gone.
        if assignment.wanted().first_offset != first:
            return True
        member = next((member for member in assignment.members_with_room() if member.has_credit()), None)
        if member is None:
            return False
        given = assignment.assign(member, extent.next_offset)
        member.give(
            share, Push(share.reference, given.first_offset, given.next_offset, extent.buffers, extent.size_bytes)
        )
        return True

    def _end(self, share: _Share, error: StorageError) -> None:
        """Tell the members that nothing more comes from a shard, and why; the group's other shards go on."""
        shard = share.shard
        del self._shares[shard.shard_id]
        shard.remove_listener(self._published)
        event = "removed" if shard.deleted else "error"
        for member in self._members:
            member.notify(Notice(event, share.reference, shard.shard_id, shard.name, error=error))

    def _store_position(self, share: _Share, nursery: trio.Nursery) -> None:
        """Store the group's position if it moved, one commit at a time for each shard."""
        if not share.committing and share.assignment.committed_offset > share.stored_offset and not share.shard.damage:
            share.committing = True
            nursery.start_soon(self._commit, share)

    async def _commit(self, share: _Share) -> None:
        offset = share.assignment.committed_offset
        try:
            await self._control.commit_cursor(share.shard.name, self.cursor_name, offset, None)
            share.stored_offset = offset
        except StorageError:
            # The shard was deleted or the engine failed: the members learn that from the shard itself, and records
            # behind the stored position are delivered again.
            share.stored_offset = max(share.stored_offset, offset)
        finally:
            share.committing = False
            self.wake()
