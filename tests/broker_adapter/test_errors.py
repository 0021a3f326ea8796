"""Users of the adapter find every error in one module."""

from __future__ import annotations

from types import ModuleType

import pytest

from broker_adapter import errors
from journal.protocol import errors as protocol_errors
from shards import errors as storage_errors


@pytest.mark.parametrize("declared", [storage_errors, protocol_errors])
def test_the_adapter_names_every_error_that_it_may_raise(declared: ModuleType) -> None:
    own = {
        name
        for name, kind in vars(declared).items()
        if isinstance(kind, type) and issubclass(kind, storage_errors.StorageError) and not name.startswith("_")
    }
    assert own <= set(errors.__all__)
    assert all(getattr(errors, name) is getattr(declared, name) for name in own)
