"""Follows the rules of the store: a subscription notifies a broker of each change, and the broker applies it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import structlog
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.errors import StorageError
from broker_adapter.mqtt.rules.followers import follow, put_follower
from broker_adapter.mqtt.rules.rule_set import MappingChangedError
from broker_adapter.mqtt.rules.store import read_rules
from broker_adapter.mqtt.rules.stored import RULES_SHARD, RULES_SHARD_CONFIG, StoredFollower, StoredRules
from broker_adapter.mqtt.session.store_retry import may_pass

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


@attrs.frozen
class Followed:
    """The rules that a program applies.

    Attributes:
        version: Version of these rules; 0 if the store had none.
        problem: Why it does not apply newer ones; empty if it does.
    """

    version: int
    problem: str = ""


class RulesFollower:
    """Keeps one program at the newest rules of the store.

    Args:
        adapter: The store.
        stored: The rules that it started with; None if there were none.
        change: Applies other rules; returns when that is done. Raises `StorageError` if it cannot.
        broker_id: Id under which the applied version is reported in the store; empty for a program that reports none.
    """

    def __init__(
        self,
        adapter: StorageAdapter,
        stored: StoredRules | None,
        change: Callable[[StoredRules], Awaitable[None]],
        broker_id: str = "",
    ) -> None:
        self._adapter = adapter
        self._stored = stored
        self._change = change
        self._broker_id = broker_id
        self._problem = ""
        self._reported: StoredFollower | None = None

    @property
    def problem(self) -> str:
        """Why the program does not apply the newest rules; empty if it does."""
        return self._problem

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow until cancelled; `task_status` is notified when the rules of the store, or later ones, are applied.

        Raises:
            StorageError: The store refuses the subscription.
            MappingChangedError: Raised by ``change``: this program must restart to apply the new rules.
        """
        await follow(
            self._adapter,
            RULES_SHARD,
            RULES_SHARD_CONFIG,
            self._read,
            final=(MappingChangedError,),
            task_status=task_status,
        )

    async def _read(self) -> None:
        stored = await read_rules(self._adapter)
        if stored is not None and stored != self._stored:
            await self._apply(stored)
            self._stored = stored
        await self._report()

    async def _report(self) -> None:
        if self._broker_id:
            report = StoredFollower(0 if self._stored is None else self._stored.version, self._problem)
            if report != self._reported:
                await put_follower(self._adapter, self._broker_id, report)
                self._reported = report

    async def _apply(self, stored: StoredRules) -> None:
        self._problem = ""
        try:
            await self._change(stored)
        except StorageError as error:
            if may_pass(error):
                raise
            self._problem = str(error)
            log.error(  # noqa: TRY400 it is no bug of ours
                "the new rules cannot be applied, the earlier ones stay", version=stored.version, reason=str(error)
            )
