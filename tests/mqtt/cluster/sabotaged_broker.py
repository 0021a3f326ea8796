"""Starts a broker with one defect put back that was mended, so that it can be shown that the ledger names it.

python -m tests.mqtt.cluster.sabotaged_broker HOW --config FILE
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

import broker_adapter.mqtt.publish.validation
import broker_adapter.mqtt.session.owned_session
from broker_adapter.changes import Changes, StatePut
from broker_adapter.mqtt.cli.main import main
from broker_adapter.mqtt.delivery.current_position import CurrentPosition
from broker_adapter.mqtt.delivery.sender import MessageSender
from broker_adapter.mqtt.model.position import Position, ReachedLsn, StateVersion
from broker_adapter.mqtt.publish.store_changes import until_reached
from broker_adapter.mqtt.session import keys
from broker_adapter.mqtt.session.owned_session import NOTHING_RECEIVED, OwnedSession
from broker_adapter.mqtt.session.sessions import Sessions
from broker_adapter.mqtt.session.timers import DELAYED
from broker_adapter.mqtt_codec.errors import ProtocolViolationError
from broker_adapter.mqtt_codec.publish_template import PublishTemplate
from broker_adapter.mqtt_codec.reason_codes import ReasonCode

AHEAD: Final = 60
"""In lsns."""


def miss_retained() -> None:
    """A version is compared with a position of another domain: what was retained last counts as live."""

    def covers(self: Position, version: StateVersion) -> bool:
        return version.number + AHEAD <= self.lsn

    Position.covers = covers  # type: ignore[method-assign]


def run_ahead() -> None:
    """The position that the store reported is beyond what is committed."""
    honest = CurrentPosition.ask

    async def ahead(self: CurrentPosition) -> Position:
        return Position(ReachedLsn((await honest(self)).lsn + AHEAD))

    CurrentPosition.ask = ahead  # type: ignore[method-assign]


def claim_nothing() -> None:
    """A message of a group is sent at QoS 2 without being the session's in the store."""

    async def claim(_: Sessions, __: object, wanted: Mapping[Any, Any]) -> None:
        for entry in wanted.values():
            entry.is_claimed = True

    Sessions.claim = claim  # type: ignore[method-assign, assignment]


def stop_at_foreign() -> None:
    """A record that fits into no packet ends the connection of each subscriber."""

    def template(self: MessageSender, *arguments: Any) -> PublishTemplate | None:
        try:
            return self._encoder.template(*arguments)
        except ValueError as error:
            raise ProtocolViolationError(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, str(error)) from error

    MessageSender._template = template  # type: ignore[method-assign]


def believe_dup() -> None:
    """A publish at QoS 2 that comes again without DUP is taken for another one."""
    broker_adapter.mqtt.publish.validation.digest_of = lambda *_: -1  # type: ignore[attr-defined]


def forget_retained() -> None:
    """What is retained for a subscription and was not sent yet dies with the connection."""
    broker_adapter.mqtt.session.owned_session.retained_of = lambda _: []  # type: ignore[attr-defined]


def delay_twice() -> None:
    """A delayed message at QoS 1 is committed without its session, under a new name each time, until that is answered.

    The session's number of a write, and names that stay the same, tell that a commit was carried out.
    """
    honest = OwnedSession.commit

    async def commit(
        self: OwnedSession, changes: Changes, received: Mapping[int, int] = NOTHING_RECEIVED, **others: Any
    ) -> None:
        if received or not any(put.key.startswith(keys.delayed("")) for put in changes.puts):
            await honest(self, changes, received, **others)
        else:
            await until_reached(lambda: self._store_retry.commit(renamed(changes)))

    OwnedSession.commit = commit  # type: ignore[method-assign, assignment]


def renamed(changes: Changes) -> Changes:
    """The same changes with other names of the delayed messages among them and of their timers."""
    puts = {put.key: put for put in changes.puts}
    for put in changes.puts:
        if put.key.startswith(keys.TIMERS) and (timer := keys.TimerKey.decode(put.key)).kind == DELAYED:
            old, new = timer.name.decode(), secrets.token_hex(8)
            del puts[put.key]
            message = puts.pop(keys.delayed(old))
            key = keys.TimerKey(timer.due_us, DELAYED, new.encode()).encode()
            puts[key] = StatePut(key, put.value, 0)
            puts[keys.delayed(new)] = StatePut(keys.delayed(new), message.value, 0)
    return attrs.evolve(changes, puts=tuple(puts.values()))


SABOTAGES: Final[dict[str, Callable[[], None]]] = {
    sabotage.__name__.replace("_", "-"): sabotage
    for sabotage in (
        miss_retained,
        run_ahead,
        claim_nothing,
        stop_at_foreign,
        believe_dup,
        forget_retained,
        delay_twice,
    )
}


if __name__ == "__main__":
    SABOTAGES[sys.argv.pop(1)]()
    main()
