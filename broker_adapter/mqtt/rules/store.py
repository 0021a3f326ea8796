"""Reading and changing the rules of a store."""

from __future__ import annotations

from typing import Final

import attrs
import msgspec
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.changes import Changes, StatePut
from broker_adapter.errors import ShardNotFoundError, StorageError, VersionConflictError
from broker_adapter.mqtt.rules.differences import differences
from broker_adapter.mqtt.rules.followers import running_brokers
from broker_adapter.mqtt.rules.rule_set import RulesConflictError, RuleSet, RulesRefusedError
from broker_adapter.mqtt.rules.stored import (
    RULES_KEY,
    RULES_SHARD,
    RULES_SHARD_CONFIG,
    Announcement,
    StoredRules,
)
from broker_adapter.mqtt.session.store_retry import may_pass
from broker_adapter.state_forms import decode, encode
from shards.back_off import BackOff
from shards.format.record import Record, StoredRecord
from shards.model import StateValue
from shards.seams.clock import Clock

_LOOKS: Final = BackOff(0.02, 0.5, jitter=0.0)


@attrs.frozen
class Applied:
    """The result of a request to change the rules.

    Attributes:
        stored: The rules that are stored now.
        changes: Their differences to the earlier ones; empty if they were stored already.
    """

    stored: StoredRules
    changes: list[str]


async def read_rules(adapter: StorageAdapter) -> StoredRules | None:
    """The rules of a store; None if it has none.

    Raises:
        StorageError: The store does not answer, or a newer program wrote the rules.
    """
    return _decoded(await adapter.get_state(RULES_KEY))


def require_version(stored: StoredRules | None, expected_version: int | None) -> None:
    """Refuse a change that was made for another version of the rules.

    Args:
        expected_version: 0 for no rules yet, None for any.

    Raises:
        RulesConflictError: The rules have another version.
    """
    version = 0 if stored is None else stored.version
    if expected_version not in (None, version):
        by = "" if stored is None else f" (by {stored.applied_by})"
        raise RulesConflictError(
            f"the rules of the store have version {version}{by}, not {expected_version}; read them, and make the "
            "change for that version"
        )


@attrs.frozen(slots=True)
class Condition:
    """When a change of the rules is made.

    Attributes:
        expected_version: The version that is to be replaced, 0 for no rules yet; None for any.
        only_first: Do not replace existing rules.
        with_mapping_anyway: Change mapping rules although brokers run; they must restart then.
    """

    expected_version: int | None = None
    only_first: bool = False
    with_mapping_anyway: bool = False


class RulesChange:
    """One change of the rules of a store, which may be repeated when the answer of the store was lost.

    Args:
        rules: The new rules of all brokers.
        source: Name of these rules in descriptions of differences.
        by: Who makes the change, for people.
        condition: When the change is made.
    """

    def __init__(
        self,
        adapter: StorageAdapter,
        rules: RuleSet,
        *,
        source: str,
        by: str,
        clock: Clock,
        condition: Condition = Condition(),
    ) -> None:
        self._adapter = adapter
        self._rules = rules
        self._source = source
        self._by = by
        self._clock = clock
        self._condition = condition
        self._attempted: Applied | None = None

    @property
    def is_uncertain(self) -> bool:
        """Whether it was attempted without a known result: then the store may have these rules already."""
        return self._attempted is not None

    async def make(self) -> Applied:
        """Make the change, unless the store has these rules already.

        Must not return until they would survive a crash of the store. After an error without an answer of the store,
        call it again on the same object: the change is made once, and the result is the same.

        Raises:
            RulesRefusedError: Mapping rules cannot be changed while brokers run, or the change was made and has been
                replaced by another one.
            RulesConflictError: The rules of the store have another version than expected, and differ from these.
            ConfigurationError: The rules of the store have something unknown to this version of the program.
            StorageError: The store does not answer.
        """
        await self._adapter.create_shard(RULES_SHARD, RULES_SHARD_CONFIG, exist_ok=True)
        while True:
            found = await self._adapter.get_state(RULES_KEY)
            before = _decoded(found)
            if self._attempted is not None and before is not None and await self._was_made(self._attempted, before):
                return self._attempted
            if before is not None and self._condition.only_first:
                return Applied(before, [])
            present = RuleSet() if before is None else before.rules
            changes = differences(present, self._rules, "the store", self._source)
            if before is not None and not changes:
                return Applied(before, [])
            require_version(before, self._condition.expected_version)
            if present.mapping != self._rules.mapping and not self._condition.with_mapping_anyway:
                await _require_no_broker(self._adapter, changes)
            version = 1 if before is None else before.version + 1
            stored = StoredRules(version, self._rules.tables, self._clock.now_us(), self._by)
            self._attempted = Applied(stored, changes)
            announcement = msgspec.json.encode(Announcement.of(stored, self._rules, changes))
            try:
                await self._adapter.commit(
                    Changes(
                        appends=((RULES_SHARD, [Record(announcement)]),),
                        puts=(StatePut(RULES_KEY, encode(stored), 0 if found is None else found.version),),
                    )
                )
            except VersionConflictError:
                # Another change was first, or the answer to this commit was lost: reading again tells which.
                continue
            return self._attempted

    async def _was_made(self, attempted: Applied, now: StoredRules) -> bool:
        """Whether an attempt whose outcome is unknown was carried out; ``now`` is what the store has at present."""
        if now == attempted.stored:
            return True
        is_past = now.version > attempted.stored.version and not self._condition.only_first
        if not is_past or not await _is_in_history(self._adapter, attempted.stored):
            return False
        raise RulesRefusedError(
            f"these rules became version {attempted.stored.version}, and meanwhile {now.applied_by} has replaced them "
            f"by version {now.version}; read that version, and apply again what it lacks"
        )


async def apply_rules(
    adapter: StorageAdapter,
    rules: RuleSet,
    *,
    source: str,
    by: str,
    clock: Clock,
    expected_version: int | None = None,
    within_s: float = 0.0,
) -> Applied:
    """Store rules as those of all brokers. See `RulesChange` for the arguments.

    Args:
        within_s: For how long to retry while the store does not answer, in seconds.

    Raises:
        RulesRefusedError, RulesConflictError, ConfigurationError, StorageError: See `RulesChange.make`. After the last
            one it is unknown whether the rules were changed; the call may be repeated.
    """
    change = RulesChange(adapter, rules, source=source, by=by, clock=clock, condition=Condition(expected_version))
    deadline_s = trio.current_time() + within_s
    attempt = 0
    while True:
        pause_s = _LOOKS.delay_s(attempt)
        try:
            return await change.make()
        except StorageError as error:
            if not may_pass(error) or trio.current_time() + pause_s >= deadline_s:
                raise
        await trio.sleep(pause_s)
        attempt += 1


async def _require_no_broker(adapter: StorageAdapter, changes: list[str]) -> None:
    running = await running_brokers(adapter)
    if running:
        raise RulesRefusedError(
            f"mapping rules cannot be changed while brokers run ({', '.join(running)}), because messages are stored "
            "where the present rules put them; stop all brokers (a dead one counts for up to 25 s), apply the rules, "
            f"start them again. Differences: {'; '.join(changes)}"
        )


async def _is_in_history(adapter: StorageAdapter, stored: StoredRules) -> bool:
    """Whether a version was ever stored. False if the history was trimmed or deleted."""
    try:
        offset = 0
        while True:
            found = await adapter.read(RULES_SHARD, offset)
            for record in found.records:
                if isinstance(record, StoredRecord):
                    announcement = msgspec.json.decode(record.value, type=Announcement)
                    if announcement.version == stored.version:
                        return (announcement.applied_us, announcement.applied_by) == (
                            stored.applied_us,
                            stored.applied_by,
                        )
            if found.next_offset <= offset:
                return False
            offset = found.next_offset
    except (ShardNotFoundError, msgspec.DecodeError):
        return False


def _decoded(found: StateValue | None) -> StoredRules | None:
    return None if found is None else decode(StoredRules, found.key, found.value)
