"""Errors of the rules that all brokers of a store share."""

from __future__ import annotations

from broker_adapter.errors import StorageError, StorageFailedError
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
