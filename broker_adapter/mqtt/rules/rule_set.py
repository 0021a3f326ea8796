"""The rules of all brokers of a store: bridges, storage rules, mapping rules and ``broker.offline``. Pure.

A rule set has the shape of a settings file: `RuleSet.tables` has the values as TOML would parse them, without those
that are defaults, and `parse_rules` reads that. ``drive`` of a bridge is a setting of each broker, not part of the
rules.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import attrs

from broker_adapter.bridge.config import BridgeTable
from broker_adapter.errors import StorageError, StorageFailedError
from broker_adapter.mqtt.config import BrokerConfig, MappingTable, StorageTable, problems_of_rules
from journal.settings.file import Schema
from journal.settings.values import ConfigurationError


class RulesDifferError(ConfigurationError):
    """The settings of this program and the store have different rules; the message lists the differences."""


class RulesRefusedError(StorageError):
    """The rules cannot be changed in this way now; nothing was changed."""

    code = "rules_refused"


class RulesConflictError(RulesRefusedError):
    """The rules of the store have another version than the change expected."""

    code = "version_conflict"


class MappingChangedError(StorageFailedError):
    """The mapping rules were changed while this broker ran: it must restart to apply them."""


@attrs.frozen
class SharedSection:
    """The settings of ``[broker]`` that are the same at all brokers."""

    offline: bool = True


@attrs.frozen
class RuleSet:
    """The rules of a store.

    Attributes:
        broker: Default of what sessions get that were away, for topics that no storage rule decides.
        storage: Storage rules; their order counts.
        mapping: Mapping rules; their order counts.
        bridge: Bridges, sorted by name.
    """

    broker: SharedSection = SharedSection()
    storage: tuple[StorageTable, ...] = ()
    mapping: tuple[MappingTable, ...] = ()
    bridge: tuple[BridgeTable, ...] = ()

    @classmethod
    def of(cls, config: BrokerConfig) -> RuleSet:
        """The rules in a broker's settings."""
        return cls(SharedSection(config.broker.offline), config.storage, config.mapping, _shared(config.bridge))

    @property
    def is_default(self) -> bool:
        """Whether it equals the defaults."""
        return self == RuleSet()

    @property
    def tables(self) -> dict[str, Any]:
        """The rules as plain values, with their names in a settings file."""
        found: dict[str, Any] = {} if self.broker.offline else {"broker": {"offline": False}}
        for name in ("storage", "mapping", "bridge"):
            if rows := [plain_table(row) for row in getattr(self, name)]:
                found[name] = rows
        return found


_SCHEMA: Final[Schema[RuleSet]] = Schema(RuleSet)
_CHECKED_SCHEMA: Final[Schema[RuleSet]] = Schema(
    RuleSet, check=lambda rules: problems_of_rules(rules.storage, rules.bridge)
)


def parse_rules(tables: Mapping[str, Any], source: str) -> RuleSet:
    """Parse the result of `RuleSet.tables`. The settings of sinks are not checked.

    Args:
        tables: The plain values.
        source: Name of their source, for messages.

    Raises:
        ConfigurationError: Something is unknown to this version; the message has a line for each such setting.
    """
    found = _SCHEMA.settle(dict(tables), source)
    return attrs.evolve(found, bridge=_shared(found.bridge))


def check_rules(tables: Mapping[str, Any], source: str) -> RuleSet:
    """Parse rules from a user, with the checks of a settings file, including those of the settings of sinks.

    Args:
        tables: The plain values, with their names in a settings file; nothing else may be among them.
        source: Name of their source, for messages.

    Raises:
        ConfigurationError: Something is unknown, of a wrong type or out of bounds; a line for each such setting.
    """
    found = _CHECKED_SCHEMA.settle(dict(tables), source)
    return attrs.evolve(found, bridge=_shared(found.bridge))


def plain_table(row: attrs.AttrsInstance) -> dict[str, Any]:
    """The settings of one table that differ from their defaults, as TOML would parse them."""
    return {
        attribute.name: _plain(value)
        for attribute in attrs.fields(type(row))
        if (value := getattr(row, attribute.name)) != _default_of(attribute)
    }


def _shared(bridges: tuple[BridgeTable, ...]) -> tuple[BridgeTable, ...]:
    return tuple(sorted((attrs.evolve(table, drive=True) for table in bridges), key=lambda table: table.name))


def _default_of(attribute: attrs.Attribute[Any]) -> object:
    default = attribute.default
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type, union-attr]


def _plain(value: object) -> object:
    if isinstance(value, enum.StrEnum):
        return value.value
    if isinstance(value, tuple):
        return list(value)
    return value
