"""Hot loops in C: one extension module, which is optional, and where the form of each loop is chosen.

Each loop has a form in Python that does the same. The one in C is used where the module was built for this Python,
unless `JOURNAL_PURE_PYTHON` is set in the environment. What is compiled imports nothing: classes are given to it.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType

    from shards.compiled._loops import AppendLoop

__all__ = ["DESCRIPTION", "PURE_PYTHON", "append_loop_type"]

PURE_PYTHON: Final = "JOURNAL_PURE_PYTHON"
"""Environment variable; if it is set and not empty, every loop is the one in Python."""


def _import() -> tuple[ModuleType | None, str]:
    if os.environ.get(PURE_PYTHON):
        return None, f"Python ({PURE_PYTHON} is set)"
    try:
        loops = import_module("shards.compiled._loops")
    except ModuleNotFoundError:
        return None, "Python (the compiled ones were not built)"
    except ImportError as error:
        return None, f"Python (the compiled ones cannot be loaded: {error})"
    return loops, f"compiled (CRC-32C: {loops.CRC32C})"


_module, DESCRIPTION = _import()
"""Which form of the loops is used, and why, in a few words."""

append_loop_type: type[AppendLoop] | None = None if _module is None else _module.AppendLoop
"""The loop of `journal.engine.write.append_loop` in C; None if the one in Python has to be used."""
