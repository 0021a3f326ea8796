"""The metrics of several processes as those of one broker. Pure.

Counters and histograms are summed, and those of a process that has ended stay in the sums, so that they never fall.
Gauges are summed where a sum is what the gauge says of one broker. All others, and the metrics of the operating system
about a process, have the label `process`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from journal.telemetry.exposition import Family, Labels, counters, gauges

SUMMED_GAUGES: Final = frozenset(
    {
        "journal_broker_connections",
        "journal_broker_connections_limit",
        "journal_broker_sessions",
        "journal_broker_durable_sessions",
        "journal_broker_subscriptions",
        "journal_broker_queued_messages",
        "journal_broker_behind_clients",
        "journal_broker_blocked_clients",
    }
)
_OF_A_PROCESS: Final = "process_"
PROCESS: Final = "process"
"""Label of what is not summed."""

_Series = tuple[str, str, Labels]
"""Name of the metric, suffix of the sample, values of the labels."""


def encode_families(families: Iterable[Family]) -> bytes:
    """Families as JSON."""
    rows = [
        [family.name, family.kind, family.what, family.labels, [list(sample) for sample in family.samples]]
        for family in families
    ]
    return json.dumps(rows).encode()


def decode_families(data: bytes) -> list[Family]:
    """The families that `encode_families` made JSON of."""
    return [
        Family(name, kind, what, tuple(labels), [(suffix, tuple(values), value) for suffix, values, value in samples])
        for name, kind, what, labels, samples in json.loads(data)
    ]


def labelled(families: Iterable[Family], process: str) -> list[Family]:
    """The families with the label `process`."""
    return [
        attrs.evolve(
            family,
            labels=(*family.labels, PROCESS),
            samples=[(suffix, (*values, process), value) for suffix, values, value in family.samples],
        )
        for family in families
    ]


def joined(families: Iterable[Family]) -> list[Family]:
    """Families of which each name comes once, with the samples of all that have it, in the order of the first ones."""
    found: dict[str, Family] = {}
    for family in families:
        earlier = found.get(family.name)
        found[family.name] = (
            family if earlier is None else attrs.evolve(earlier, samples=[*earlier.samples, *family.samples])
        )
    return list(found.values())


def supervisor_metrics(restart_counts: Mapping[int, int], absent: Iterable[int]) -> list[Family]:
    """What the supervisor knows of the processes.

    Args:
        restart_counts: How often each was started again, by its number.
        absent: Numbers of the processes that give no metrics now.
    """
    return [
        counters(
            "journal_broker_process_restarts_total",
            "Processes that ended and were started again.",
            (PROCESS,),
            {(str(number),): count for number, count in restart_counts.items()},
        ),
        gauges(
            "journal_broker_ready",
            "1 while clients are served, as in /readyz.",
            (PROCESS,),
            {(str(number),): 0 for number in absent},
        ),
    ]


def is_summed(family: Family) -> bool:
    """Whether the values of all processes are summed; otherwise each has the label `process`."""
    if family.name.startswith(_OF_A_PROCESS):
        return False
    return family.kind != "gauge" or family.name in SUMMED_GAUGES


class MergedMetrics:
    """The metrics of the processes of a broker, and what ended processes have counted."""

    def __init__(self) -> None:
        self._last: dict[int, list[Family]] = {}
        self._ended: dict[_Series, float] = {}
        self._families_ended: dict[str, Family] = {}

    def note(self, number: int, families: Sequence[Family]) -> None:
        """These are the metrics of a process now."""
        self._last[number] = [family for family in families if is_summed(family) and family.kind != "gauge"]

    def note_ended(self, number: int) -> None:
        """A process has ended: what it had counted, as far as it is known, stays in the sums."""
        for family in self._last.pop(number, ()):
            self._families_ended[family.name] = family
            _add(self._ended, family)

    def families(self, present: Mapping[int, Sequence[Family]]) -> list[Family]:
        """All metrics.

        Args:
            present: The metrics of the processes that have given them now. Of others that have not ended, the counters
                are those that they gave before.
        """
        current = {**self._last, **present}
        sums = dict(self._ended)
        summed: dict[str, Family] = dict(self._families_ended)
        order: dict[str, None] = {}
        apart: list[Family] = []
        for number, families in current.items():
            for family in families:
                order[family.name] = None
                if is_summed(family):
                    summed[family.name] = family
                    _add(sums, family)
                else:
                    apart += labelled([family], str(number))
        order.update(dict.fromkeys(summed))
        samples: dict[str, list[tuple[str, Labels, float]]] = {}
        for (name, suffix, values), value in sums.items():
            samples.setdefault(name, []).append((suffix, values, value))
        found = {name: attrs.evolve(family, samples=samples.get(name, [])) for name, family in summed.items()}
        found.update((family.name, family) for family in joined(apart))
        return [found[name] for name in order]


def _add(sums: dict[_Series, float], family: Family) -> None:
    for suffix, values, value in family.samples:
        series = (family.name, suffix, values)
        sums[series] = sums.get(series, 0) + value
