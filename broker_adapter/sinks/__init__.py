"""Sinks: where bridges bring the records of cache queues. The contract is `sink`, kinds are found by `kinds`.

Each kind has a module of its own and imports what it needs only when one is opened.
"""

from broker_adapter.sinks.batch import Batch, Row, Value
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
    "RowsRefusedError",
    "Sink",
    "SinkContext",
    "SinkError",
    "SinkUnavailableError",
    "Value",
]
