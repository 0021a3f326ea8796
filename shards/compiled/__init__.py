"""Hot loops in C: one extension module, which is optional, and where the form of each loop is chosen.

Each loop has a form in Python that does the same. The one in C is used where the module was built for this Python,
unless `JOURNAL_PURE_PYTHON` is set in the environment. What is compiled imports nothing: classes are given to it.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from shards.compiled._loops import AppendLoop, DirectWriter, PublishTemplate

__all__ = [
    "DESCRIPTION",
    "PURE_PYTHON",
    "append_loop_type",
    "decode_records",
    "direct_writer_type",
    "encode_binary",
    "publish_template",
    "read_packets",
    "size_of_items",
]

PURE_PYTHON: Final = "JOURNAL_PURE_PYTHON"
"""Environment variable; if it is set and not empty, every loop is the one in Python."""
INTERFACE: Final = 5
"""Changed with the functions and classes of the module, so that one that was built before is not used."""


def _import() -> tuple[ModuleType | None, str]:
    if os.environ.get(PURE_PYTHON):
        return None, f"Python ({PURE_PYTHON} is set)"
    try:
        loops = import_module("shards.compiled._loops")
    except ModuleNotFoundError:
        return None, "Python (the compiled ones were not built)"
    except ImportError as error:
        return None, f"Python (the compiled ones cannot be loaded: {error})"
    if getattr(loops, "INTERFACE", 1) != INTERFACE:
        return None, "Python (the compiled ones are of another version)"
    return loops, f"compiled (CRC-32C: {loops.CRC32C})"


_module, DESCRIPTION = _import()
"""Which form of the loops is used, and why, in a few words."""

append_loop_type: type[AppendLoop] | None = None if _module is None else _module.AppendLoop
"""The loop of `journal.engine.write.append_loop` in C; None if the one in Python has to be used."""

decode_records: Callable[..., list[Any] | None] | None = None if _module is None else _module.decode_records
"""The decoder of `shards.format.record_decoder` in C; None if the one in Python has to be used."""

encode_binary: Callable[[Sequence[bytes]], bytes | None] | None = None if _module is None else _module.encode_binary
"""The encoder of binary columns of `shards.format.columns` in C; None if the one in Python has to be used."""

size_of_items: Callable[[Sequence[bytes]], int | None] | None = None if _module is None else _module.size_of_items
"""The sum of the sizes of a list or tuple of bytes, None for anything else; None if Python has to add them."""

direct_writer_type: type[DirectWriter] | None = getattr(_module, "DirectWriter", None)
"""What writes and syncs without the GIL for `journal.engine.wal.disk`; None if there is no such thing, or no Linux."""

publish_template: Callable[..., PublishTemplate] | None = None if _module is None else _module.publish_template
"""What makes the templates of `broker_adapter.mqtt_codec.publish_template` in C; None if those in Python are used."""

read_packets: Callable[..., int] | None = None if _module is None else _module.read_packets
"""The reader of usual packets for `broker_adapter.mqtt_codec.decoder` in C; None if Python reads all of them."""
