"""Publishes of one client that are not acknowledged yet: stored in order, acknowledged in order of receipt.

Most messages are appended at once without waiting, in one append for all messages of a shard that one receive brought.
If that is not possible (the shard must be created, the store has no room, or a message must be stored together with
something else), that message and all after it are queued here, and a task stores them. What all connections share is in
`store_changes`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final

import trio

from broker_adapter.changes import Changes
from broker_adapter.errors import (
    OverloadedError,
    ServerRestoredError,
    ShardNotFoundError,
    StorageError,
    VersionConflictError,
)
from broker_adapter.mqtt.model.message import DelayedPublish, Message, digest_of
from broker_adapter.mqtt.publish.append_groups import AppendGroup, AppendGroups
from broker_adapter.mqtt.publish.received import OVERHEAD_BYTES, Received, needs_commit
from broker_adapter.mqtt.publish.store_changes import JoinedAppend, Publisher, parts_of, reason_code_of
from broker_adapter.mqtt_codec.reason_codes import ReasonCode
from broker_adapter.results import PendingAppend
from shards.model import ShardConfig

MAX_WAITING_BYTES: Final = 256 * 1024
"""Payload bytes that may be queued here before no more is read from the client; one receive may exceed this."""

_TOGETHER_BYTES: Final = 1 << 20
_COMMITTED_TOGETHER: Final = 256
_CREATED_TOGETHER: Final = 1024


class PublishPipeline:
    """The publishes of one connection.

    Args:
        publisher: Stores them.
        commit: Commits changes together with the session's state, exactly once even if an answer is lost; it gets the
            packet identifiers and digests of the QoS 2 messages among them.
        on_outcomes: Called with messages whose outcome is known, in the order in which they were received.
        start: Starts a task that ends with the connection.
        is_refused: Whether a quota of the client's user does not allow a retained or delayed message; None if it has
            no such quota.

    Attributes:
        storing: QoS 2 messages that are not stored yet, by packet identifier.
        waiting_bytes: Bytes that are queued.
    """

    def __init__(
        self,
        publisher: Publisher,
        *,
        commit: Callable[[Changes, Mapping[int, int]], Awaitable[None]],
        on_outcomes: Callable[[list[Received]], None],
        start: Callable[[Callable[[], Awaitable[None]]], None],
        is_refused: Callable[[Message, DelayedPublish | None], Awaitable[bool]] | None = None,
    ) -> None:
        self._is_refused = is_refused
        self._publisher = publisher
        self._commit = commit
        self._on_outcomes = on_outcomes
        self._start_task = start
        self._tasks: set[trio.CancelScope] = set()
        self._is_stopped = False
        self._outcomes: deque[Received] = deque()
        self._queue: deque[Received] = deque()
        self._unplaced: deque[AppendGroup] = deque()
        self._is_blocked = False
        self._is_waited_for = False
        self._last_both: JoinedAppend | None = None
        self._progress = trio.lowlevel.ParkingLot()
        self._oldest: Received | None = None
        self._oldest_since_s = 0.0
        self.storing: dict[int, Received] = {}
        self.waiting_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether more may be read from the client."""
        return self.waiting_bytes <= MAX_WAITING_BYTES

    async def wait_for_room(self) -> None:
        """Return when `has_room` is true."""
        while not self.has_room:
            await self._progress.park()

    async def settle(self) -> None:
        """Return when all outcomes are known, or when no more will be reported."""
        while self._outcomes and not self._is_stopped:
            await self._progress.park()

    # The end

    @property
    def is_answered(self) -> bool:
        """Whether the store has answered all appends.

        Commits do not count: each checks the version of the session's record and fails if another broker owns it.
        """
        return not self.unanswered()

    def unanswered(self) -> Collection[PendingAppend]:
        """The appends that the store has not answered, including those to shards of cache queues."""
        pending = {received.pending for received in self._outcomes if received.pending is not None}
        return {part for each in pending for part in parts_of(each) if not part.is_done}

    def stop(self) -> None:
        """Send nothing more to the store, and report no more outcomes."""
        self._is_stopped = True
        self._progress.unpark_all()
        for scope in self._tasks:
            scope.cancel()

    async def wait_answered(self) -> None:
        """Return when the store has answered all appends."""
        for pending in self.unanswered():
            await _done(pending)

    def oldest_s(self, now_s: float) -> float:
        """For how many seconds the same publish is the oldest without an outcome, by the calls of this; 0 if none is.

        After `stop` only publishes that the store has not answered count.
        """
        oldest = next((one for one in self._outcomes if not self._is_stopped or _is_unanswered(one)), None)
        if oldest is not self._oldest:
            self._oldest, self._oldest_since_s = oldest, now_s
        return 0.0 if oldest is None else now_s - self._oldest_since_s

    def why_it_waits(self) -> str:
        """What the publish that `oldest_s` found waits for."""
        return "nothing" if self._oldest is None else self._publisher.why_it_waits(self._oldest)

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            with trio.CancelScope() as scope:
                self._tasks.add(scope)
                try:
                    if not self._is_stopped:
                        await work()
                finally:
                    self._tasks.discard(scope)

        self._start_task(run)

    # Taking in

    def submit(self, messages: Iterable[Received]) -> None:
        """Store messages. One whose outcome is known already is added only to keep the order of acknowledgements.

        A QoS 2 message with the packet identifier of one in `storing` is a repetition of that, also if both came in the
        same receive: it is acknowledged twice, and stored once.
        """
        if self._is_stopped:
            return
        outcomes, queue, storing = self._outcomes, self._queue, self.storing
        for received in messages:
            if received.reason_code is not None:
                outcomes.append(received)
                continue
            if received.qos == 2:
                first = storing.get(received.packet_id)
                if first is not None:
                    outcomes.append(first)
                    continue
                storing[received.packet_id] = received
            outcomes.append(received)
            queue.append(received)
            self.waiting_bytes += received.size_bytes
        if not self._is_blocked:
            self._place()
            if self._queue or self._unplaced:
                self._is_blocked = True
                self._start(self._unblock)
        self._drain()
        self._watch_outcomes()

    # Storing

    def _place(self) -> None:
        """Append the first messages of the queue, as far as possible without waiting."""
        queue, publisher = self._queue, self._publisher
        while queue and not self._unplaced:
            groups = AppendGroups(publisher)
            size_bytes = 0
            while queue and size_bytes < _TOGETHER_BYTES:
                received = queue[0]
                message = received.message
                if message is None or needs_commit(received):
                    break
                plan = groups.plan_for(message)
                if plan is None:
                    break
                queue.popleft()
                size_bytes += OVERHEAD_BYTES + len(message.payload)
                if plan.queues and (refusing := plan.refusing) is not None:
                    received.reason_code = publisher.refuse(refusing)
                else:
                    plan.add(received, message)
            if not size_bytes:
                return
            self.waiting_bytes -= size_bytes
            appends = list(groups)
            # A client that waits for each answer sends one message at a time, which is one append.
            is_single = not queue and len(appends) == 1
            for group in appends:
                # After one for which there is no room: the next may be smaller, and for the same shard.
                if self._unplaced or not self._append(group, is_last=is_single):
                    self._unplaced.append(group)
                    for received in group.received:
                        received.unplaced_count += 1
                    self.waiting_bytes += sum(received.size_bytes for received in group.received)

    def _append(self, group: AppendGroup, *, is_last: bool = False) -> bool:
        """Append a group; false if the store has no room for it now."""
        try:
            if group.queue is None:
                pending: PendingAppend | None = self._publisher.append_nowait(
                    group.shard, group.records, is_last=is_last
                )
            else:
                pending = group.queue.put_nowait(group.records, has_room=True)
        except OverloadedError:
            return False
        except StorageError as error:
            reason_code = self._refusal(error)
            for received in group.received:
                received.reason_code = reason_code
            return True
        if pending is not None:
            for received in group.received:
                received.pending = pending if received.pending is None else self._both(received.pending, pending)
        return True

    def _both(self, first: PendingAppend, second: PendingAppend) -> PendingAppend:
        """Two appends as one. Messages of the same group share it."""
        last = self._last_both
        if last is None or last.first is not first or last.second is not second:
            last = self._last_both = JoinedAppend(first, second)
        return last

    async def _unblock(self) -> None:
        """Store what could not be stored without waiting, and all behind it."""
        while (self._unplaced or self._queue) and not self._is_stopped:
            if self._unplaced:
                group = self._unplaced[0]
                size_bytes = sum(received.size_bytes for received in group.received)
                await self._publisher.wait_for_room(size_bytes)
                if self._append(group):
                    self._unplaced.popleft()
                    for received in group.received:
                        received.unplaced_count -= 1
                    self.waiting_bytes -= size_bytes
            elif needs_commit(self._queue[0]):
                await self._commit_first()
            else:
                await self._create_first()
            self._place()
            self._drain()
            self._progress.unpark_all()
        self._is_blocked = False

    async def _create_first(self) -> None:
        """Create the shards of the first messages of the queue."""
        missing: dict[str, ShardConfig] = {}
        for received in self._queue:
            if received.message is None or needs_commit(received) or len(missing) >= _CREATED_TOGETHER:
                break
            placement = self._publisher.placement_of(received.message)
            missing[placement.shard] = placement.config
        refused = await self._publisher.create_shards(missing)
        if not refused:
            return
        reason_codes = {error: self._refusal(error) for error in refused.values()}
        waiting, self._queue = self._queue, deque()
        for received in waiting:
            error = (
                None if received.message is None else refused.get(self._publisher.placement_of(received.message).shard)
            )
            if error is None or (reason_code := reason_codes[error]) is None:
                self._queue.append(received)
            else:
                self._finish(received, reason_code)

    async def _commit_first(self) -> None:
        """Commit the first messages of the queue that must be stored together with something else."""
        run: list[Received] = []
        size_bytes = 0
        while self._queue and needs_commit(self._queue[0]) and len(run) < _COMMITTED_TOGETHER:
            size_bytes += self._queue[0].size_bytes
            if run and size_bytes > _TOGETHER_BYTES:
                break
            received = self._queue.popleft()
            message = received.message
            reason_code = None
            if message is not None and received.due is None:
                reason_code = self._publisher.refusal_of(message)
            if reason_code is None and message is not None and self._is_refused is not None:
                reason_code = await self._over_quota(message, received.due)
            if reason_code is None:
                run.append(received)
            else:
                self._finish(received, reason_code)
        if not run:
            return
        if any(received.qos < 2 for received in run):
            # A commit may overtake appends under way; messages of one topic and QoS must keep their order.
            await self._wait_for_appends()
        error = await self._commit_run(run)
        if error is None:
            for received in run:
                self._finish(received, ReasonCode.SUCCESS)
            return
        # One of them was refused: commit each by itself, so that only that one fails.
        for received in run:
            refusal = error if len(run) == 1 else await self._commit_run([received])
            reason_code = ReasonCode.SUCCESS if refusal is None else self._refusal(refusal)
            if reason_code is None:
                return
            self._finish(received, reason_code)

    async def _over_quota(self, message: Message, due: DelayedPublish | None) -> ReasonCode | None:
        assert self._is_refused is not None  # the caller has checked
        try:
            return ReasonCode.QUOTA_EXCEEDED if await self._is_refused(message, due) else None
        except StorageError as error:
            return reason_code_of(error)

    async def _commit_run(self, run: list[Received]) -> StorageError | None:
        """Commit messages together, or return why the store refuses."""
        messages = [(received.message, received.due) for received in run if received.message is not None]
        placements = [self._publisher.placement_of(message) for message, due in messages if due is None]
        shards = {placement.shard: placement.config for placement in placements}
        digests = {
            received.packet_id: digest_of(received.message.topic, received.message.payload)
            for received in run
            if received.qos == 2 and received.message is not None
        }
        for may_repeat in (True, False):
            refused = await self._publisher.create_shards(shards)
            if refused:
                return next(iter(refused.values()))
            changes = self._publisher.changes(messages)
            try:
                # The session finds out which of its writes were carried out when an answer is lost.
                await self._commit(changes, digests)
            except ShardNotFoundError as error:
                if not may_repeat:
                    return error
                for shard in shards:
                    self._publisher.forget(shard)
            except VersionConflictError as error:
                # The new keys in this commit are named after this message, so the message was stored before.
                return None if len(run) == 1 and run[0].due is not None else error
            except StorageError as error:
                return error
            else:
                break
        return None

    async def _wait_for_appends(self) -> None:
        for received in list(self._outcomes):
            pending = received.pending
            if pending is not None and not pending.is_done:
                await _done(pending)

    def _finish(self, received: Received, reason_code: ReasonCode) -> None:
        received.reason_code = reason_code
        self.waiting_bytes -= received.size_bytes
        if received.qos == 2:
            self.storing.pop(received.packet_id, None)
        self._progress.unpark_all()

    # Outcomes

    def _watch_outcomes(self) -> None:
        """Have further outcomes reported: when the store answers, or by a task if something else must come before."""
        if not self._outcomes or self._is_waited_for or self._is_stopped:
            return
        self._is_waited_for = True
        first = self._outcomes[0]
        if first.pending is not None and not first.unplaced_count:
            # Without a task, which takes as long to start and to end as all the rest of an acknowledgement.
            first.pending.call_when_done(self._answered)
        else:
            self._start(self._wait_for_outcomes)

    def _answered(self) -> None:
        self._is_waited_for = False
        try:
            self._drain()
            self._watch_outcomes()
        except Exception as error:  # noqa: BLE001 the task ends the connection with it; the store is not concerned
            self._start(partial(_raise, error))

    async def _wait_for_outcomes(self) -> None:
        while self._outcomes and not self._is_stopped:
            first = self._outcomes[0]
            if first.unplaced_count:
                await self._progress.park()
            elif first.pending is not None:
                await _done(first.pending)
            elif first.reason_code is None:
                await self._progress.park()
            self._drain()
        self._is_waited_for = False

    def _drain(self) -> None:
        """Report all outcomes that are known, up to the first that is not."""
        if self._is_stopped:
            return
        outcomes = self._outcomes
        known: list[Received] = []
        last: PendingAppend | None = None
        last_code: ReasonCode | None = ReasonCode.SUCCESS
        while outcomes:
            first = outcomes[0]
            if first.reason_code is None:
                pending = first.pending
                if pending is None or first.unplaced_count:
                    break
                if pending is not last:
                    if not pending.is_done:
                        break
                    last = pending
                    last_code = self._outcome_of(pending, first)
                if last_code is None:
                    break
                first.reason_code = last_code
            known.append(outcomes.popleft())
        if known:
            self._progress.unpark_all()
            self._on_outcomes(known)

    def _outcome_of(self, pending: PendingAppend, first: Received) -> ReasonCode | None:
        """None if it is not known yet, or will not be told."""
        try:
            pending.result_nowait()
        except ShardNotFoundError as error:
            if first.is_repeated:
                return self._refusal(error)
            self._store_again(pending)
            return None
        except StorageError as error:
            return self._refusal(error)
        return ReasonCode.SUCCESS

    def _refusal(self, error: StorageError) -> ReasonCode | None:
        """The reason code that the client gets for an error of the store; None if it gets no answer.

        When the store was restored from a backup this broker ends. Its clients send what is not answered again.
        """
        if isinstance(error, ServerRestoredError):
            self.stop()
            return None
        self._publisher.refused(error)
        return reason_code_of(error)

    def _store_again(self, pending: PendingAppend) -> None:
        """The shard was deleted: create it again, for all messages of this append."""
        again = [received for received in self._outcomes if received.pending is pending]
        for received in again:
            received.pending = None
            received.is_repeated = True
            self.waiting_bytes += received.size_bytes
            if received.message is not None:
                self._publisher.forget(self._publisher.placement_of(received.message).shard)
        self._queue.extendleft(reversed(again))
        if not self._is_blocked:
            self._is_blocked = True
            self._start(self._unblock)


async def _raise(error: Exception) -> None:
    await trio.lowlevel.checkpoint()
    raise error


def _is_unanswered(received: Received) -> bool:
    return received.pending is not None and not received.pending.is_done


async def _done(pending: PendingAppend) -> None:
    """Wait until the outcome is known; errors are handled where the outcome is read."""
    try:
        await pending.wait()
    except StorageError:
        assert pending.is_done
