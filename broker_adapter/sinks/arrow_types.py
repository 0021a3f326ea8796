"""Arrow's types of declared columns. Importing this module needs pyarrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from broker_adapter.sinks.column_types import ColumnType

ARROW_TYPES: Final[Mapping[ColumnType, Any]] = {
    ColumnType.TEXT: pa.string(),
    ColumnType.JSON: pa.string(),
    ColumnType.BINARY: pa.binary(),
    ColumnType.INT: pa.int64(),
    ColumnType.FLOAT: pa.float64(),
    ColumnType.BOOL: pa.bool_(),
    ColumnType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}
