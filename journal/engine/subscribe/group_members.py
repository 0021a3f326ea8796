"""The members of a group subscription, and the shards of a group with their positions: what `SharedGroup` connects."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from journal.engine.subscribe.group_positions import Position
from journal.engine.subscribe.subscription import Subscription
from shards.segments.shard import Shard
from shards.subscriptions.events import Notice, Push
from shards.subscriptions.group_assignment import GroupAssignment


class Group(Protocol):
    """What a member asks of its group; see `SharedGroup`."""

    def rights_changed(self, member: Member) -> None: ...

    def wake(self) -> None: ...

    def acknowledge(self, member: Member, reference: int, first_offset: int, next_offset: int) -> None: ...

    def leave(self, member: Member) -> None: ...


class Member(Subscription):
    """One member of a group subscription.

    Attributes:
        number: Number of the member in the group, counted from 1; never assigned again after it has left.
        holding: Shares with records that it holds and has not acknowledged.
        waiting: Shares that only this member can take, once it has credit again.
    """

    def __init__(
        self,
        group: Group,
        number: int,
        on_ready: Callable[[], None],
        credit_bytes: Callable[[], int],
        may_deliver: Callable[[str], bool] | None,
    ) -> None:
        self._group = group
        self._may_deliver = may_deliver
        self._on_ready = on_ready
        self._queue: deque[Push | Notice] = deque()
        self._announced: dict[int, Share] = {}
        self._credit_bytes = credit_bytes
        self._queued_bytes = 0
        self.number = number
        self.holding: dict[Share, None] = {}
        self.waiting: OrderedDict[Share, None] = OrderedDict()

    def has_credit(self) -> bool:
        """Whether it may be given more: records that it has not taken yet count as taken."""
        return self._credit_bytes() > self._queued_bytes

    def may_get(self, shard: Shard) -> bool:
        """Whether it may get the records of a shard."""
        return self._may_deliver is None or self._may_deliver(shard.name)

    def restrict(self, may_deliver: Callable[[str], bool] | None) -> None:
        if may_deliver is None and self._may_deliver is None:
            return
        self._may_deliver = may_deliver
        lost = {reference for reference, share in self._announced.items() if not self.may_get(share.shard)}
        if lost:
            self._queue = deque(item for item in self._queue if item.reference not in lost)
            self._queued_bytes = sum(item.size_bytes for item in self._queue if isinstance(item, Push))
            for reference in lost:
                del self._announced[reference]
        self._group.rights_changed(self)

    @property
    def has_more(self) -> bool:
        return bool(self._queue)

    def give(self, share: Share, push: Push) -> None:
        """Queue records that this member holds from now on."""
        if share.reference not in self._announced:
            self._announced[share.reference] = share
            self._queue.append(Notice("added", share.reference, share.shard.shard_id, share.shard.name))
        self._queue.append(push)
        self._queued_bytes += push.size_bytes
        self._on_ready()

    def end(self, share: Share, notice: Notice) -> None:
        """Queue the notice that nothing more comes from a shard."""
        self._announced.pop(share.reference, None)
        self.holding.pop(share, None)
        self.waiting.pop(share, None)
        if self.may_get(share.shard):
            self._queue.append(notice)
            self._on_ready()

    async def take(self, max_bytes: int) -> Push | Notice | None:
        if not self._queue:
            return None
        item = self._queue.popleft()
        if isinstance(item, Push):
            self._queued_bytes -= item.size_bytes
        return item

    def acknowledge(self, reference: int, first_offset: int, next_offset: int) -> None:
        self._group.acknowledge(self, reference, first_offset, next_offset)

    def credit_changed(self) -> None:
        self._group.wake()

    def close(self) -> None:
        # Other members get the records that it held.
        self._queue.clear()
        self._group.leave(self)


class Share(Position):
    """One shard of a group.

    Attributes:
        reference: The group's number for it; never assigned to another shard.
        assignment: Which member holds which offsets; None until there is something to hand out.
        queued: It waits for a visit.
        blocked: It has records, but no member can take them now: each member that has credit already holds as much of
            the shard as it may.
        changes_count: How many times members or their rights had changed when the assignment was last updated.
    """

    __slots__ = ("assignment", "blocked", "changes_count", "first_offset", "queued", "reference")

    def __init__(self, shard: Shard, reference: int, offset: int, stored_offset: int) -> None:
        super().__init__(shard, stored_offset)
        self.reference = reference
        self.first_offset = offset
        self.assignment: GroupAssignment[Member] | None = None
        self.queued = False
        self.blocked = False
        self.changes_count = -1

    @property
    def committed_offset(self) -> int:
        """Lowest offset that is not acknowledged."""
        return self.first_offset if self.assignment is None else self.assignment.committed_offset

    @property
    def wanted_offset(self) -> int:
        """Lowest offset that no member holds and that is not acknowledged."""
        return self.first_offset if self.assignment is None else self.assignment.wanted().first_offset
