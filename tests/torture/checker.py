"""Finds broken promises in a history, as Jepsen's tests of logs do.

    python -m tests.torture.checker HISTORY...

prints one line for each and a summary; exit status 1 if there was any.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.torture.anomaly import Anomaly
from tests.torture.history import Append, Death, Fault, Operation, Poll, Read, Shard, Trim, load
from tests.torture.poll_checks import check_polls
from tests.torture.register_checks import check_registers
from tests.torture.shard_checks import ShardCheck
from tests.torture.transaction_checks import check_transactions


def check(operations: Sequence[Operation]) -> list[Anomaly]:
    """All anomalies of a history; the operations come in the order in which they began.

    Kinds: lost write, duplicate, reordering, inconsistent offset, aborted read, phantom record, torn batch, falling
    lsn, falling append time, one lsn for two appends, hole in a read, repetition in a read, gap in file mode, offset
    used again, record in place of a gap, disappeared read, trim undone, non-monotonic read, skipped poll, repeated
    poll, stale read, stale compare-and-set, cursor went back, deleted value came back, version given out twice,
    inconsistent version, phantom value, torn transaction, fault.
    """
    anomalies: list[Anomaly] = []
    sorts: dict[str, bool] = {}
    appends: dict[str, list[Append]] = defaultdict(list)
    looks: dict[str, list[Read | Poll]] = defaultdict(list)
    trims: dict[str, list[Trim]] = defaultdict(list)
    deaths: list[Death] = []
    for operation in operations:
        if isinstance(operation, Shard):
            sorts[operation.shard] = sorts.get(operation.shard, True) and operation.always_file
        elif isinstance(operation, Append):
            appends[operation.shard].append(operation)
        elif isinstance(operation, Read | Poll):
            looks[operation.shard].append(operation)
        elif isinstance(operation, Trim):
            trims[operation.shard].append(operation)
        elif isinstance(operation, Death):
            deaths.append(operation)
        elif isinstance(operation, Fault):
            anomalies.append(Anomaly("fault", operation.who, operation.error))
    for shard in sorted({*appends, *looks}):
        anomalies += ShardCheck(
            shard,
            always_file=sorts.get(shard, True),
            appends=appends[shard],
            looks=looks[shard],
            trims=trims[shard],
            deaths=deaths,
        ).anomalies()
    anomalies += check_polls(operations)
    anomalies += check_registers(operations)
    anomalies += check_transactions(operations)
    return anomalies


def main(paths: Sequence[str]) -> int:
    """Check the history in some files."""
    operations = load(map(Path, paths))
    anomalies = check(operations)
    for anomaly in anomalies:
        sys.stdout.write(f"{anomaly}\n")
    sys.stdout.write(f"{len(operations)} operations, {len(anomalies)} anomalies\n")
    return 1 if anomalies else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
