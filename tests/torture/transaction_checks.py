"""What a history says about changes made together: all of them or none. Pure, operations in, anomalies out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.torture.anomaly import Anomaly
from tests.torture.history import Append, Get, Operation, Put, Read


def check_transactions(operations: Sequence[Operation]) -> Iterator[Anomaly]:
    """Look for transactions of which one part is there in the end and another is not.

    A value that was put may have been replaced before it was read. So a value that no read returned proves nothing.
    """
    appends: dict[str, list[Append]] = defaultdict(list)
    puts: dict[str, list[Put]] = defaultdict(list)
    there: dict[str, set[str]] = defaultdict(set)
    starts: dict[str, int] = defaultdict(int)
    values: set[tuple[str, str]] = set()
    for operation in operations:
        if isinstance(operation, Append) and operation.transaction:
            appends[operation.transaction].append(operation)
        elif isinstance(operation, Put) and operation.transaction:
            puts[operation.transaction].append(operation)
        elif isinstance(operation, Read) and operation.last:
            there[operation.shard].update(record.value for record in operation.records)
            starts[operation.shard] = max(starts[operation.shard], operation.start_offset)
        elif isinstance(operation, Get) and operation.value is not None:
            values.add((operation.key, operation.value))
    for transaction, parts in appends.items():
        # Of a shard that was trimmed it cannot be told whether a record was ever there.
        judged = [part for part in parts if part.shard in there and not starts[part.shard]]
        found = [part for part in judged if part.values[0] in there[part.shard]]
        missing = [part for part in judged if part.values[0] not in there[part.shard]]
        seen = [put for put in puts[transaction] if (put.key, put.value) in values]
        if missing and (found or seen):
            shown = found[0].shard if found else seen[0].key
            yield Anomaly("torn transaction", transaction, f"{shown} has its part, {missing[0].shard} has not")
