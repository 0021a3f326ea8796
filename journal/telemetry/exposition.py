"""Metrics in the text format of Prometheus, for programs without its client library. Pure.

A program describes its metrics as a list of families, which is created for every scrape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import isfinite
from typing import Final

import attrs

from journal.telemetry.histogram import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_IN_LABELS: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_IN_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})

Labels = tuple[str, ...]


@attrs.frozen(slots=True)
class Family:
    """The series of one metric.

    Attributes:
        name: Name of the metric; that of a counter ends in ``_total``.
        kind: ``counter``, ``gauge`` or ``histogram``.
        what: One sentence that describes it.
        labels: Names of its labels.
        samples: Suffix of the name (``_bucket`` or empty), values of the labels, value.
    """

    name: str
    kind: str
    what: str
    labels: Labels
    samples: Sequence[tuple[str, Labels, float]]


def gauge(name: str, what: str, value: float) -> Family:
    """A value that can rise and fall."""
    return Family(name, "gauge", what, (), [("", (), value)])


def counter(name: str, what: str, value: float) -> Family:
    """A value that only rises while the process runs."""
    return Family(name, "counter", what, (), [("", (), value)])


def gauges(name: str, what: str, labels: Labels, values: Mapping[Labels, float]) -> Family:
    """A gauge for each combination of labels."""
    return Family(name, "gauge", what, labels, [("", each, value) for each, value in values.items()])


def counters(name: str, what: str, labels: Labels, values: Mapping[Labels, float]) -> Family:
    """A counter for each combination of labels."""
    return Family(name, "counter", what, labels, [("", each, value) for each, value in values.items()])


def histogram(name: str, what: str, values: Histogram) -> Family:
    """The distribution of values."""
    bounds = [*map(_number, values.bounds), "+Inf"]
    counts = list(accumulate(values.counts()))
    samples = [("_bucket", (bound,), float(count)) for bound, count in zip(bounds, counts, strict=True)]
    return Family(
        name, "histogram", what, (), [*samples, ("_sum", (), values.total), ("_count", (), float(counts[-1]))]
    )


def page_of(families: Iterable[Family]) -> bytes:
    """The page that is scraped."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.what.translate(_IN_HELP)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for suffix, values, value in family.samples:
            names = ("le",) if suffix == "_bucket" else family.labels
            lines.append(f"{family.name}{suffix}{_labels(names, values)} {_number(value)}")
    lines.append("")
    return "\n".join(lines).encode()


def _labels(names: Labels, values: Labels) -> str:
    if not values:
        return ""
    told = [f'{name}="{value.translate(_IN_LABELS)}"' for name, value in zip(names, values, strict=True)]
    return "{" + ",".join(told) + "}"


def _number(value: float) -> str:
    """The shortest text that is read back as the same number."""
    if not isfinite(value):
        return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"  # noqa: PLR0124 only NaN is not itself
    return str(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(value)
