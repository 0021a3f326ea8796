"""The sink ``files``: each batch is a file of its own in a directory, whose name says which offsets it has."""

from __future__ import annotations

from typing import Final

from broker_adapter.sinks.files.settings import FilesSettings, check
from broker_adapter.sinks.files.sink import open_files_sink
from broker_adapter.sinks.kinds import SinkKind

__all__ = ["KIND"]

KIND: Final = SinkKind(settings=FilesSettings, open=open_files_sink, check=check)
