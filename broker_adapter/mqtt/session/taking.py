"""Taking a session for this broker, from whoever has it: the store says in the end whose it is."""

from __future__ import annotations

import secrets
from typing import Final

import attrs

from broker_adapter.mqtt.session import transitions
from broker_adapter.mqtt.session.adoption import read
from broker_adapter.mqtt.session.commits import Commits
from broker_adapter.mqtt.session.contact import Contact, may_pass
from broker_adapter.mqtt.session.control import ControlChannel
from broker_adapter.mqtt.session.statistics import SessionStatistics
from broker_adapter.mqtt.session.transitions import Opening, Transition
from shards.clock import Clock
from shards.errors import StorageError, VersionConflictError

_CONFLICTS_IN_ONE_STEP: Final = 2
"""After so many conflicts a session is taken in two steps."""


@attrs.frozen(slots=True)
class Taken:
    """A session that is this broker's now.

    Attributes:
        transition: How it became that.
        record_version: Of its record in the store.
        progress_version: Of what is under way in it; 0 if the store has nothing of it.
    """

    transition: Transition
    record_version: int
    progress_version: int


class Taking:
    """Takes sessions.

    Args:
        contact: The store.
        commits: Carries it out.
        control: Asks the owner first.
        broker_id: For whom.
        clock: Dates it.
        yield_timeout_s: How long the owner is waited for.
    """

    def __init__(
        self,
        contact: Contact,
        commits: Commits,
        control: ControlChannel,
        broker_id: str,
        clock: Clock,
        yield_timeout_s: float,
        statistics: SessionStatistics,
    ) -> None:
        self._contact = contact
        self._commits = commits
        self._control = control
        self._broker_id = broker_id
        self._clock = clock
        self._yield_timeout_s = yield_timeout_s
        self._statistics = statistics

    async def take(self, client_id: str, wanted: Opening) -> Taken:
        """Read, decide, commit, until a commit is carried out. Exactly one of those who compete is, each time.

        Cancelling it leaves open whether the session is this broker's.

        Raises:
            StorageError: The store refuses the session.
        """
        attempts: dict[int, Transition] = {}
        asked: set[int] = set()
        attempt = conflict_count = 0
        while True:
            found = await read(self._contact, client_id, with_progress=not wanted.clean_start)
            record = found.record
            if record is not None and record.claim in attempts:
                # It was carried out, and only the answer was lost.
                taken = await self._finish(attempts[record.claim], found.record_version)
                if taken is not None:
                    return taken
                continue
            is_elsewhere = record is not None and record.owner not in (transitions.NOBODY, self._broker_id)
            if record is not None and is_elsewhere and record.epoch not in asked:
                asked.add(record.epoch)
                if not await self._control.ask(record.owner, client_id, record.epoch, timeout_s=self._yield_timeout_s):
                    self._statistics.forced_count += 1
                continue
            opening = attrs.evolve(wanted, claim=secrets.randbits(63))
            transition = attempts[opening.claim] = transitions.opened(
                found, opening, self._clock.now_us(), with_progress=conflict_count < _CONFLICTS_IN_ONE_STEP
            )
            try:
                committed = await self._commits.make(client_id, transition)
            except VersionConflictError:
                conflict_count += 1
                await self._contact.pause_after_conflict(attempt)
            except StorageError as error:
                if not may_pass(error):
                    raise
                await self._contact.pause(attempt)
            else:
                self._statistics.taken_over_count += is_elsewhere
                record_version = committed.values[0].version
                if transition.progress is None:
                    taken = await self._finish(transition, record_version)
                    if taken is not None:
                        return taken
                    continue
                progress_version = committed.values[1].version if opening.expiry_interval_s > 0 else 0
                return Taken(transition, record_version, progress_version)
            attempt += 1

    async def _finish(self, transition: Transition, record_version: int) -> Taken | None:
        """Take what is under way in a session whose record is this broker's, if it was not taken in the same step.

        An owner before that goes on writing notices soon that the record is not its own any more.

        Returns:
            None if somebody else has taken the session meanwhile.
        """
        record = transition.record
        assert record is not None
        second: Transition | None = None
        attempt = 0
        while True:
            found = await read(self._contact, record.client_id)
            if found.record is None or found.record.claim != record.claim:
                return None
            if transition.progress is not None:
                return Taken(transition, record_version, found.progress_version)
            if second is not None and (found.progress is None or found.progress.claim == record.claim):
                # The second step was carried out, and only the answer was lost.
                whole = attrs.evolve(transition, progress=second.progress)
                return Taken(whole, record_version, found.progress_version)
            second = transitions.progress_taken(found, record)
            try:
                committed = await self._commits.make(record.client_id, second)
            except VersionConflictError:
                await self._contact.pause_after_conflict(attempt)
            except StorageError as error:
                if not may_pass(error):
                    raise
                await self._contact.pause(attempt)
            else:
                whole = attrs.evolve(transition, progress=second.progress)
                return Taken(whole, record_version, committed.values[0].version if committed.values else 0)
            attempt += 1
