"""Sinks: destinations of the records of cache queues. `sink` has the interface, `kinds` finds the kinds of sinks.

Each kind has a package of its own, which imports its dependencies only when a sink is opened.
"""

from broker_adapter.sinks.batch import Batch, Row, Rows, Value
from broker_adapter.sinks.errors import (
    BatchRefusedError,
    DriverFencedError,
    RowsRefusedError,
    SinkError,
    SinkUnavailableError,
)
from broker_adapter.sinks.sink import Sink, SinkContext

__all__ = [
    "Batch",
    "BatchRefusedError",
    "DriverFencedError",
    "Row",
    "Rows",
    "RowsRefusedError",
    "Sink",
    "SinkContext",
    "SinkError",
    "SinkUnavailableError",
    "Value",
]
