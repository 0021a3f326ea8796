"""Errors of the rules that hold at all brokers of a store."""

from __future__ import annotations

from broker_adapter.errors import StorageError, StorageFailedError
from journal.settings.values import ConfigurationError


class RulesDifferError(ConfigurationError):
    """The settings of this program and the store have different rules; the message says which."""


class RulesRefusedError(StorageError):
    """The rules cannot be changed so now. Those that hold stay."""

    code = "rules_refused"


class RulesConflictError(RulesRefusedError):
    """The rules of the store have another version than the one that a change was to be made to."""

    code = "version_conflict"


class MappingChangedError(StorageFailedError):
    """The mapping rules were changed while this broker ran: it must start again to go by them."""
