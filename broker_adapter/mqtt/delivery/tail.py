"""A live feed of one target (a filter over shards), read once for all sessions of this broker that need it."""

from __future__ import annotations

import logging
from typing import Final, Protocol

import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.errors import StorageError
from broker_adapter.mqtt.model.limits import STORE_BACK_OFF
from broker_adapter.mqtt.model.position import Position, ReachedLsn
from broker_adapter.subscription import Delivery, Progress

_log = logging.getLogger(__name__)

_CREDIT_BYTES: Final = 4 << 20


class Audience(Protocol):
    """Gets what tails bring; its methods must not block."""

    def began(self, tail: Tail, start: Position) -> None:
        """The feed has begun: everything behind this position will come."""

    def delivered(self, tail: Tail, delivery: Delivery) -> None:
        """Records have come."""

    def progressed(self, tail: Tail, reached: Position) -> None:
        """Everything up to this position has come."""


class Tail:
    """A live feed of one target; see the module.

    A tail skips no record. When its feed fails it restarts at the last position up to which everything had come:
    records beyond that come once more, and the audience recognizes them by a `DedupWatermark`.

    Args:
        target: Filter over shards.
        audience: Gets the records.
        resumes: Restart at that position, not at the present end of the store.

    Attributes:
        reached_lsn: Everything from its beginning up to this lsn was handed out.
    """

    def __init__(self, target: str, audience: Audience, *, resumes: bool = True) -> None:
        self.target = target
        self.reached_lsn = ReachedLsn(0)
        self._audience = audience
        self._resumes = resumes
        self._scope = trio.CancelScope()

    def __repr__(self) -> str:
        return f"<Tail {self.target!r} at {self.reached_lsn}>"

    def end(self) -> None:
        """Hand out nothing more."""
        self._scope.cancel()

    async def run(
        self,
        adapter: StorageAdapter,
        after_lsn: int | None,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Follow the store until ended; `task_status` is notified when no new record can be missed any more.

        Args:
            adapter: The store.
            after_lsn: Where to begin; None: at the end.

        Raises:
            StorageError: It cannot begin. Later errors are logged, and it restarts.
        """
        has_begun = False

        def began() -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                task_status.started()

        attempt = 0
        with self._scope:
            while True:
                try:
                    async with adapter.follow(self.target, after_lsn, credit_bytes=_CREDIT_BYTES) as feed:
                        start = Position(feed.start_lsn)
                        self._reached(start)
                        self._audience.began(self, start)
                        began()
                        async for item in feed:
                            attempt = 0
                            self._hand_out(item)
                except StorageError as error:
                    if not has_begun:
                        raise
                    log = _log.debug if attempt else _log.warning
                    log("the tail of %r was interrupted and restarts: %s", self.target, error)
                except trio.ClosedResourceError:
                    if not has_begun:
                        raise
                    return
                else:
                    return  # the adapter is being closed
                if self._resumes:
                    after_lsn = self.reached_lsn
                await trio.sleep(STORE_BACK_OFF.delay_s(attempt))
                attempt += 1

    def _hand_out(self, item: Delivery | Progress) -> None:
        if self._scope.cancel_called:
            return
        if isinstance(item, Progress):
            reached = Position(item.lsn)
            self._reached(reached)
            self._audience.progressed(self, reached)
            return
        # The lsn of a record is not a position: a record that is shown later may have a lower one.
        self._audience.delivered(self, item)

    def _reached(self, position: Position) -> None:
        self.reached_lsn = max(self.reached_lsn, position.lsn)
