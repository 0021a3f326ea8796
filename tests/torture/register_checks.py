"""What a history says about versioned values, state keys and cursors: pure, operations in, anomalies out.

Versions are lsns, so all writes of one key are ordered by them. With the order known, a key is linearizable if that
order agrees with real time, every compare-and-set follows directly upon the version it names, and every read gives the
newest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.torture.anomaly import Anomaly
from tests.torture.history import Delete, Get, Operation, Outcome, Put

_SHOWN = 3
_ABSENT = 0


def check_registers(operations: Sequence[Operation]) -> Iterator[Anomaly]:
    """Check every key for itself."""
    by_key: dict[str, list[Put | Delete | Get]] = defaultdict(list)
    for operation in operations:
        if isinstance(operation, Put | Delete | Get):
            by_key[operation.key].append(operation)
    for key, found in by_key.items():
        counts: dict[str, int] = defaultdict(int)
        for anomaly in _Register(key, found).anomalies():
            counts[anomaly.kind] += 1
            if counts[anomaly.kind] <= _SHOWN:
                yield anomaly


class _Register:
    def __init__(self, key: str, operations: Sequence[Put | Delete | Get]) -> None:
        self._key = key
        self._puts = [one for one in operations if isinstance(one, Put)]
        self._done = [put for put in self._puts if put.outcome is Outcome.OK]
        self._deletes = [one for one in operations if isinstance(one, Delete) and one.outcome is not Outcome.FAILED]
        self._gets = [one for one in operations if isinstance(one, Get) and one.outcome is Outcome.OK]
        self._versions = sorted(
            {put.version for put in self._done} | {get.version for get in self._gets if get.version}
        )

    def _anomaly(self, kind: str, *detail: object) -> Anomaly:
        return Anomaly(kind, self._key, ", ".join(map(str, detail)))

    def anomalies(self) -> Iterator[Anomaly]:
        yield from self._values()
        yield from self._compared()
        yield from self._in_real_time()

    def _values(self) -> Iterator[Anomaly]:
        """Every version has one value, whose write was not refused."""
        values: dict[int, str] = {}
        for put in self._done:
            if values.setdefault(put.version, put.value) != put.value:
                yield self._anomaly("version given out twice", put.version, values[put.version], put.value)
        # A cursor may be set to one offset many times; values of state keys are unique.
        is_cursor = self._key.startswith("cursor/")
        versions: dict[str, int] = {put.value: put.version for put in self._done}
        by_value: dict[str, list[Put]] = defaultdict(list)
        for put in self._puts:
            by_value[put.value].append(put)
        for get in self._gets:
            if get.value is None:
                continue
            if values.setdefault(get.version, get.value) != get.value:
                yield self._anomaly("inconsistent version", get.version, values[get.version], get.value)
            if not is_cursor and versions.setdefault(get.value, get.version) != get.version:
                yield self._anomaly("inconsistent version", get.value, versions[get.value], get.version)
            writes = by_value.get(get.value, [])
            if not writes:
                yield self._anomaly("phantom value", get.value, "it was never written")
            elif all(put.outcome is Outcome.FAILED for put in writes):
                yield self._anomaly("aborted read", get.value, f"its write by {writes[0].who} failed")

    def _compared(self) -> Iterator[Anomaly]:
        """Nothing is between the version that a compare-and-set names and the one that it makes."""
        by_expected: dict[int, Put] = {}
        for put in self._done:
            if put.expected is None:
                continue
            if put.expected >= put.version:
                yield self._anomaly("stale compare-and-set", f"from {put.expected} to {put.version}")
            if put.expected == _ABSENT:
                yield from self._put_if_absent(put)
                continue
            other = by_expected.setdefault(put.expected, put)
            if other is not put:
                yield self._anomaly("stale compare-and-set", f"{put.who} and {other.who} both from {put.expected}")
                continue
            between = [version for version in self._versions if put.expected < version < put.version]
            if between:
                told = f"{put.who} from {put.expected} to {put.version}, past {between[:_SHOWN]}"
                yield self._anomaly("stale compare-and-set", told)

    def _put_if_absent(self, put: Put) -> Iterator[Anomaly]:
        before = [other for other in self._done if other.version < put.version]
        newest = max(before, key=lambda other: other.version, default=None)
        if newest is not None and not self._deleted_between(newest.began_ns, put.ended_ns):
            yield self._anomaly("stale compare-and-set", f"{put.who} found nothing, though {newest.version} was there")

    def _deleted_between(self, first_ns: float, last_ns: float) -> bool:
        return any(delete.ended_ns > first_ns and delete.began_ns < last_ns for delete in self._deletes)

    def _in_real_time(self) -> Iterator[Anomaly]:
        """What was known when an operation began is not older than what it says."""
        kind = "cursor went back" if self._key.startswith("cursor/") else "stale read"
        seen: list[tuple[float, int, float]] = [(put.ended_ns, put.version, put.began_ns) for put in self._done]
        seen += [(get.ended_ns, get.version, get.began_ns) for get in self._gets if get.version]
        seen.sort()
        at, newest, began_ns = 0, _ABSENT, 0.0
        told: list[tuple[float, float, int, str]] = [
            (one.began_ns, one.ended_ns, one.version, one.who) for one in (*self._done, *self._gets)
        ]
        for asked_ns, ended_ns, version, who in sorted(told):
            while at < len(seen) and seen[at][0] < asked_ns:
                if seen[at][1] > newest:
                    _, newest, began_ns = seen[at]
                at += 1
            if version >= newest:
                continue
            if version != _ABSENT:
                yield self._anomaly(kind, f"{who} is told {version}, after {newest} was known")
            elif not self._deleted_between(began_ns, ended_ns):
                yield self._anomaly(kind, f"{who} finds nothing, after {newest} was known")
        yield from self._undeleted()

    def _undeleted(self) -> Iterator[Anomaly]:
        """What was deleted does not come back."""
        for delete in self._deletes:
            if delete.outcome is not Outcome.OK:
                continue
            before = {put.version for put in self._done if put.ended_ns < delete.began_ns}
            for get in self._gets:
                if get.began_ns > delete.ended_ns and get.version and get.version in before:
                    yield self._anomaly("deleted value came back", f"{get.who} finds {get.version}")
