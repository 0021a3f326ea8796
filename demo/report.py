"""How a run is told: the figures behind the summary, the table for people, the document for scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from demo.check import ShardEvidence, ShardResult
from demo.history import History
from demo.read_back import ReadBack
from shards.model import AckLevel

ModeHistory = Sequence[tuple[str, int]]
"""Modes of a shard and the offsets from which they hold."""

NOTE = (
    "A gap is wider than what was lost: offsets of a memory segment are reserved on disk ahead, a million at a time,\n"
    "and none that may have been given out is used again. What the other broker received before the kill it keeps."
)


@attrs.frozen(slots=True)
class Percentiles:
    """Of the acknowledgement latencies of one level, in milliseconds; ``count`` acknowledged records."""

    count: int
    p50_ms: float
    p99_ms: float
    longest_ms: float


@attrs.frozen(slots=True, kw_only=True)
class Outcome:
    """A whole run.

    Attributes:
        shards: What came of each shard.
        modes: Mode history of each shard.
        publishing_s: From the first sample to the last acknowledgement.
        published_bytes: Payload bytes of what was published.
        latencies: By acknowledgement level.
        ready_again_s: From the kill until the new server accepted.
        acknowledged_again_s: From the kill to the first acknowledgement by the new server.
        read_back: What the checker read and how fast.
        damages: What the offline check of the data directory found.
        history: What Spark made of the sealed segments.
    """

    shards: Sequence[ShardResult]
    modes: Mapping[str, ModeHistory]
    publishing_s: float
    published_bytes: int
    latencies: Mapping[str, Percentiles]
    ready_again_s: float
    acknowledged_again_s: float
    read_back: ReadBack
    damages: Sequence[str]
    history: History

    @property
    def broken(self) -> list[str]:
        """Promises that did not hold, a line each."""
        lines = [line for shard in self.shards for line in shard.broken]
        lines += [f"offline check: {damage}" for damage in self.damages]
        lines += self.history.broken
        if not self.shards:
            lines.append("nothing was published: there is no telemetry to read on this machine")
        return lines


def percentiles(latencies_us: Iterable[int]) -> Percentiles:
    """Percentiles by the nearest rank; zeros of nothing."""
    ordered = sorted(latencies_us)
    if not ordered:
        return Percentiles(0, 0.0, 0.0, 0.0)
    last = len(ordered) - 1
    return Percentiles(len(ordered), ordered[last // 2] / 1e3, ordered[round(last * 0.99)] / 1e3, ordered[-1] / 1e3)


def latencies_by_level(evidence: Iterable[ShardEvidence]) -> dict[str, Percentiles]:
    """Acknowledgement latency of every record, by the level reached."""
    by_level: dict[str, list[int]] = {"durable": [], "memory": []}
    for shard in evidence:
        for ack in shard.acknowledged:
            by_level["durable" if ack.level == AckLevel.DURABLE else "memory"].append(ack.latency_us)
    return {level: percentiles(latencies) for level, latencies in by_level.items()}


def render(outcome: Outcome) -> Table:
    """The table: a row for each topic."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, show_footer=True, collapse_padding=True)
    columns = (
        ("topic\n(one shard each)", "left"),
        ("mode\nfrom offset", "left"),
        ("pub-\nlished", "right"),
        ("acked\ndurable", "right"),
        ("acked\nmemory", "right"),
        ("read\nback", "right"),
        ("memory\nlost", "right"),
        ("shown as gap\n(offsets)", "left"),
        ("durable\nmissing", "right"),
        ("stored\ntwice", "right"),
        ("in\norder", "left"),
        ("received by the\nother: live+late", "right"),
    )
    shards = outcome.shards
    sums = (*(sum(counts) for counts in zip(*(_counts(shard) for shard in shards), strict=True)),) or (0,) * 9
    footers = ["all", "", *(f"{one:,}" for one in sums[:5]), "", f"{sums[5]:,}", f"{sums[6]:,}", ""]
    footers.append(f"{sums[7]:,}+{sums[8]:,}")
    for (heading, justify), footer in zip(columns, footers, strict=True):
        table.add_column(heading, footer, justify="right" if justify == "right" else "left", no_wrap=True)
    for shard in shards:
        counts = _counts(shard)
        table.add_row(
            shard.name,
            "\n".join(f"{mode} {offset:,}" for mode, offset in outcome.modes.get(shard.name, ())),
            *(f"{count:,}" for count in counts[:5]),
            "\n".join(str(gap) for gap in shard.gaps),
            _must_be_zero(counts[5]),
            _must_be_zero(counts[6]),
            _yes_or_no(shard.order_kept),
            f"{counts[7]:,}+{counts[8]:,}",
        )
    return table


def render_history(history: History) -> Table:
    """The table of Spark's figures, each marked when it is what the brokers were promised."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for heading in ("sealed segments, by Spark SQL", "metric"):
        table.add_column(heading, no_wrap=True)
    for heading in ("count", "mean", "p95"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("as acknowledged", no_wrap=True)
    expected = {figures.topic: figures for figures in history.expected}
    for figures in history.found:
        agrees = figures.topic in expected and figures.agrees_with(expected[figures.topic])
        table.add_row(
            figures.topic,
            figures.metric,
            f"{figures.records:,}",
            *(_number(number) for number in (figures.mean, figures.p95)),
            _yes_or_no(agrees),
        )
    return table


def summary(outcome: Outcome) -> list[str]:
    """The figures of the run, a line each."""
    published, seconds = sum(shard.published for shard in outcome.shards), max(outcome.publishing_s, 1e-9)
    durable, memory = outcome.latencies["durable"], outcome.latencies["memory"]
    read = outcome.read_back
    read_s = max(read.seconds, 1e-9)
    pace = f"{published / seconds:,.0f} records/s, {outcome.published_bytes / seconds / 1e6:.2f} MB/s"
    longest_ms = max(durable.longest_ms, memory.longest_ms)
    figures = {
        "published": f"{published:,} records in {seconds:.1f} s: {pace} (the pace of the sampling, no limit)",
        "acknowledged": (
            f"durable after {durable.p50_ms:.1f} ms (p50), {durable.p99_ms:.1f} ms (p99); "
            f"memory after {memory.p50_ms:.1f} ms, {memory.p99_ms:.1f} ms; longest {longest_ms:,.0f} ms (the kill)"
        ),
        "after the kill": (
            f"the server accepts after {outcome.ready_again_s:.2f} s, "
            f"the first append is acknowledged after {outcome.acknowledged_again_s:.2f} s"
        ),
        "read back": (
            f"{read.records:,} records in {read.seconds:.2f} s: {read.records / read_s:,.0f} records/s, "
            f"{read.size_bytes / read_s / 1e6:.1f} MB/s"
        ),
        "sealed": (
            f"{outcome.history.sealed_files} Parquet files, {outcome.history.sealed_bytes / 1e3:,.0f} kB, in "
            f"{outcome.history.sealing_s:.2f} s; Spark started in {outcome.history.session_s:.1f} s, "
            f"its query took {outcome.history.query_s:.1f} s"
        ),
    }
    return [f"{what:<16}{text}" for what, text in figures.items()]


def verdict(outcome: Outcome) -> Text:
    """The last line."""
    if outcome.broken:
        return Text(f"NOT HELD: {len(outcome.broken)} broken promises", "bold red")
    durable = sum(shard.durable for shard in outcome.shards)
    lost = sum(shard.lost_memory for shard in outcome.shards)
    return Text(
        f"HELD: all {durable:,} records acknowledged as durable are there, once and in order; "
        f"the {lost:,} lost from memory are shown as gaps; Spark finds the same in the sealed segments",
        "bold green",
    )


def document(outcome: Outcome) -> dict[str, Any]:
    """The result for scripts: every field of `Outcome`, with ``held`` and ``broken`` in front."""
    return {
        "held": not outcome.broken,
        "broken": outcome.broken,
        **attrs.asdict(outcome),
        "modes": {name: [list(entry) for entry in history] for name, history in outcome.modes.items()},
    }


def _counts(shard: ShardResult) -> tuple[int, ...]:
    return (
        *(shard.published, shard.durable, shard.memory, shard.read_back, shard.lost_memory),
        *(shard.missing_durable, shard.twice, shard.received_live, shard.received_late),
    )


def _yes_or_no(holds: bool) -> Text:
    return Text("yes", "green") if holds else Text("NO", "bold red")


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:,.2f}"


def _must_be_zero(count: int) -> Text:
    return Text("0", "green") if count == 0 else Text(f"{count:,}", "bold red")
