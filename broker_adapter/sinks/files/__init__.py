"""The sink ``files``: each batch becomes a file in a directory; its name has the range of offsets."""

from __future__ import annotations

from typing import Final

from broker_adapter.sinks.files.settings import FilesSettings, check
from broker_adapter.sinks.files.sink import open_files_sink
from broker_adapter.sinks.kinds import SinkKind

__all__ = ["KIND"]

KIND: Final = SinkKind(settings=FilesSettings, open=open_files_sink, check=check)
