"""The targets by name. Each module is loaded when one of its targets is asked for: some need much to be imported."""

from __future__ import annotations

import importlib
from typing import Final

from tests.fuzz.target import Target

_MODULES: Final = {
    "wire": ("frames", "requests", "replies"),
    "batches": ("batches", "columns", "compression"),
    "journal_files": ("entries", "journal_files", "decisions"),
    "appends": ("appends",),
    "directories": ("directories",),
    "segments": ("log_segments", "sparse_index", "conversion"),
    "parquet": ("shared_file",),
    "dump": ("dump",),
    "views": ("views", "state_forms"),
    "mqtt": ("mqtt",),
    "json_messages": ("json_messages",),
    "settings": ("server_settings", "broker_settings"),
    "small_files": ("manifests", "markers"),
    "access": ("access",),
    "names": ("filters", "names", "addresses"),
}

NAMES: Final = tuple(name for names in _MODULES.values() for name in names)


def load(name: str) -> Target:
    """The target of this name.

    Raises:
        KeyError: There is none.
    """
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise KeyError(f"there is no fuzz target {name!r}; there are {', '.join(NAMES)}")
    targets: dict[str, Target] = {
        target.name: target for target in importlib.import_module(f"tests.fuzz.targets.{module}").TARGETS
    }
    return targets[name]
