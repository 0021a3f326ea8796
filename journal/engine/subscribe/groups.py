"""The groups of an engine: they begin with their first member, collect their shards, and end after the last one."""

from __future__ import annotations

from collections.abc import Callable

import trio

from journal.engine.read.read_failures import ReadRetries
from journal.engine.read.reader import Reader
from journal.engine.state.shard_discovery import NameScan
from journal.engine.state.shard_table import ShardTable
from journal.engine.subscribe.group_members import Member
from journal.engine.subscribe.group_subscriptions import SharedGroup
from journal.engine.subscribe.subscription import SubscriptionTarget
from journal.engine.time_slice import TimeSlice
from journal.engine.write.commands import Commands
from shards.errors import InvalidRequestError, ShardNotFoundError
from shards.position import Start
from shards.segments.shard import Shard
from shards.topics.filter_index import FilterIndex
from shards.topics.names import group_cursor, validate_name


class Groups:
    """All groups of an engine.

    Args:
        table: The shards.
        reader: Reads the records.
        retries: Retries reads that failed because of a shortage.
        commands: Stores the positions.

    Attributes:
        member_count: Number of members of all groups.
    """

    def __init__(self, table: ShardTable, reader: Reader, retries: ReadRetries, commands: Commands) -> None:
        self._table = table
        self._reader = reader
        self._retries = retries
        self._commands = commands
        self._filters: FilterIndex[SharedGroup] = FilterIndex()
        self._groups: dict[SubscriptionTarget, SharedGroup] = {}
        # Groups that collect their shards, or store their last positions.
        self._busy: dict[SubscriptionTarget, trio.Event] = {}
        self._nursery: trio.Nursery | None = None
        self.member_count = 0

    def start(self, nursery: trio.Nursery) -> None:
        """Run the tasks of groups in this nursery from now on."""
        self._nursery = nursery

    def close(self) -> None:
        """End the groups; the positions that their cursors have are durable."""
        self._groups.clear()

    def all(self) -> list[SharedGroup]:
        """The groups that have members."""
        return list(self._groups.values())

    def shard_created(self, shard: Shard) -> None:
        """A shard is new: groups by filter take it up."""
        for group in set(self._filters.match(shard.name)):
            group.attach(shard, 0)

    async def join(
        self,
        target: SubscriptionTarget,
        start: Start,
        on_ready: Callable[[], None],
        credit_bytes: Callable[[], int],
        may_deliver: Callable[[str], bool] | None,
    ) -> Member:
        """Join a group, which begins with its first member; see `Subscriptions.subscribe`."""
        assert target.group is not None  # the caller has checked it
        validate_name("group name", target.group)
        validate_name("name of the group's cursor", group_cursor(target.group))
        if self._nursery is None:
            raise InvalidRequestError("group subscriptions need a running engine")
        while (busy := self._busy.get(target)) is not None:
            # While its shards are collected: afterwards the group exists, or was refused. While it ends: afterwards its
            # positions are stored, and the new group continues there.
            await busy.wait()
        group = self._groups.get(target)
        if group is not None:
            self.member_count += 1
            return group.join(on_ready, credit_bytes, may_deliver)
        ended = trio.Event()
        group = self._groups[target] = SharedGroup(
            target.group,
            self._reader,
            self._retries,
            self._commands,
            on_left=self._member_left,
            on_empty=lambda: self._drop(target, ended),
            on_ended=lambda: self._ready(target, ended),
        )
        self.member_count += 1
        member = group.join(on_ready, credit_bytes, may_deliver)
        self._nursery.start_soon(group.run)
        gathered = self._busy[target] = trio.Event()
        try:
            await self._attach_all(group, target, start)
        except BaseException:
            member.close()
            raise
        finally:
            self._ready(target, gathered)
        return member

    async def _attach_all(self, group: SharedGroup, target: SubscriptionTarget, start: Start) -> None:
        if target.shard is not None:
            found = self._table.by_name(target.shard)
            group.attach(found, await self._first_offset(group, found, start))
            return
        topic_filter = target.topic_filter
        assert topic_filter is not None  # the caller has checked that one of the two was given
        # From here on new shards are attached when they are created; the existing ones follow.
        group.topic_filter = topic_filter
        self._filters.add(topic_filter, group)
        catalogue = self._table.catalogue
        scan, step = NameScan(catalogue, topic_filter), TimeSlice()
        while (names := await scan.more()) is not None:
            for name in names:
                shard_id = catalogue.id_of(name)
                there = self._table.by_id(shard_id) if shard_id is not None else None
                if there is not None and not there.damage:
                    await self._attach(group, there, start)
                if step.is_over:
                    await step.rest()
                if group.is_over:
                    return

    async def _attach(self, group: SharedGroup, shard: Shard, start: Start) -> None:
        try:
            offset = await self._first_offset(group, shard, start)
        except ShardNotFoundError:
            # It was deleted while its first offset was searched: it is not added to the group.
            return
        group.attach(shard, offset)

    async def _first_offset(self, group: SharedGroup, shard: Shard, start: Start) -> int:
        cursor = self._commands.get_cursor(shard.name, group.cursor_name)
        return cursor.offset if cursor is not None else await self._reader.find_offset(shard, start)

    def _ready(self, target: SubscriptionTarget, event: trio.Event) -> None:
        if self._busy.get(target) is event:
            del self._busy[target]
        event.set()

    def _member_left(self) -> None:
        self.member_count -= 1

    def _drop(self, target: SubscriptionTarget, ended: trio.Event) -> None:
        group = self._groups.pop(target, None)
        if not ended.is_set():
            self._busy[target] = ended
        if group is not None and group.topic_filter is not None:
            self._filters.discard(group.topic_filter, group)
