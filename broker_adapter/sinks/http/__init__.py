"""The sink ``http``: sends batches as requests to a web service."""

from __future__ import annotations

from typing import Final

from broker_adapter.sinks.http.settings import HttpSettings, check
from broker_adapter.sinks.http.sink import open_http_sink
from broker_adapter.sinks.kinds import SinkKind

__all__ = ["KIND"]

KIND: Final = SinkKind(settings=HttpSettings, open=open_http_sink, check=check)
