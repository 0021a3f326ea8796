"""Report of a run: the tables and the summary for people, the document for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from demo.evidence.check import SeenResult, TopicResult
from demo.results.history import History
from demo.results.outcome import Outcome

NOTE = (
    "received: messages, each counted once; after the + those that came again, as QoS 1 allows when a broker dies.\n"
    "memory lost: the topic was in memory mode when the server was killed; readers are shown a gap instead."
)


def render(outcome: Outcome) -> Table:
    """The table: a row for each topic."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, show_footer=True, collapse_padding=True)
    topics = outcome.topics
    subscribers = list(dict.fromkeys(name for topic in topics for name in topic.seen))
    footers: list[str | Text] = [
        *("all", "", ""),
        *(f"{sum(getattr(topic, field) for topic in topics):,}" for field in ("published", "acknowledged", "stored")),
        f"{sum(topic.lost_from_memory for topic in topics):,}",
        *(_together(topics, name) for name in subscribers),
        _must_be_zero(sum(topic.lost_in_all for topic in topics)),
        _must_be_zero(sum(topic.doubled_in_all for topic in topics)),
        "",
    ]
    headings = [
        "topic\n(one shard each)",
        "QoS",
        "mode\nfrom offset",
        "pub-\nlished",
        "acked",
        "stored",
        "memory\nlost",
    ]
    headings += [f"{name}\nreceived" for name in subscribers]
    headings += ["lost", "doubled\nat QoS 2", "in\norder"]
    for heading, footer in zip(headings, footers, strict=True):
        left = heading.startswith(("topic", "mode", "in\n"))
        table.add_column(heading, footer, justify="left" if left else "right", no_wrap=True)
    for topic in topics:
        table.add_row(
            topic.name,
            str(topic.qos),
            "\n".join(f"{mode} {offset:,}" for mode, offset in outcome.modes.get(topic.name, ())) or "not kept",
            f"{topic.published:,}",
            f"{topic.acknowledged:,}" if topic.qos else "",
            _with_copies(topic.stored, topic.stored_again) if topic.is_stored else "",
            f"{topic.lost_from_memory:,}" if topic.lost_from_memory else "",
            *(_seen(topic.seen.get(name)) for name in subscribers),
            _must_be_zero(topic.lost_in_all),
            _must_be_zero(topic.doubled_in_all),
            _yes_or_no(topic.in_order and all(each.in_order for each in topic.seen.values())),
        )
    return table


def render_history(history: History) -> Table:
    """The table of Spark's figures, each marked if it equals the expected one."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for heading in ("sealed segments, by Spark SQL", "metric"):
        table.add_column(heading, no_wrap=True)
    for heading in ("count", "mean", "p95"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("as stored", no_wrap=True)
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
    published, seconds = sum(topic.published for topic in outcome.topics), max(outcome.publishing_s, 1e-9)
    records, size_bytes, read_s = outcome.read_back
    outage_s, grew_to, drained_s = outcome.outage
    pace = f"{published / seconds:,.0f} messages/s, {outcome.published_bytes / seconds / 1e6:.2f} MB/s"
    by_qos = (
        f"{qos} after {each.p50_ms:.1f} ms (p50), {each.p99_ms:,.1f} ms (p99)"
        for qos, each in outcome.acknowledging.items()
    )
    longest_ms = max((each.longest_ms for each in outcome.acknowledging.values()), default=0.0)
    figures = {
        "published": f"{published:,} messages in {seconds:.1f} s: {pace} (the pace of the sampling, no limit)",
        "acknowledged": f"{'; '.join(by_qos)}; longest {longest_ms:,.0f} ms (a kill)",
        "delivered": (
            f"{outcome.delivering.p50_ms:.1f} ms (p50), {outcome.delivering.p99_ms:,.1f} ms (p99) after the publish, "
            f"from broker to broker"
        ),
        "after the kills": (
            f"an acknowledgement by another broker after {outcome.broker_again_s:.2f} s, "
            f"by the new server after {outcome.server_again_s:.2f} s"
        ),
        "away": (
            f"a durable session was away for {outcome.away_s:.1f} s and got {outcome.catching_up[0]:,} messages "
            f"at another broker in {outcome.catching_up[1]:.2f} s"
        ),
        "replayed": f"{outcome.replayed[0]:,} messages from the beginning in {outcome.replayed[1]:.2f} s",
        "bridged": (
            f"the warehouse was out for {outage_s:.1f} s, its queue grew to {grew_to:,} messages and had drained "
            f"{drained_s:.1f} s after it was back"
        ),
        "read back": f"{records:,} records, {size_bytes / 1e6:.1f} MB in {read_s:.2f} s",
        "sealed": (
            f"{outcome.history.sealed_files} Parquet files, {outcome.history.sealed_bytes / 1e3:,.0f} kB, in "
            f"{outcome.history.conversion_s:.2f} s; Spark started in {outcome.history.session_s:.1f} s, "
            f"its query took {outcome.history.query_s:.1f} s"
        ),
    }
    return [f"{what:<16}{text}" for what, text in figures.items()]


def verdict(outcome: Outcome) -> Text:
    """The last line."""
    if outcome.broken:
        return Text(f"NOT HELD: {len(outcome.broken)} broken promises", "bold red")
    acknowledged = sum(topic.acknowledged for topic in outcome.topics if topic.qos)
    lost = sum(topic.lost_from_memory for topic in outcome.topics)
    return Text(
        f"HELD: all {acknowledged:,} acknowledged messages reached the warehouse and every subscriber in order, those "
        f"of QoS 2 once; subscribers lack {lost:,} that were in memory when the server was killed; Spark finds the "
        "same in the sealed segments",
        "bold green",
    )


def document(outcome: Outcome) -> dict[str, Any]:
    """The result for scripts: every field of `Outcome`, with ``held`` and ``broken`` first."""
    return {
        "held": not outcome.broken,
        "broken": outcome.broken,
        **attrs.asdict(outcome),
        "modes": {name: [list(entry) for entry in history] for name, history in outcome.modes.items()},
    }


def _together(topics: Sequence[TopicResult], subscriber: str) -> str:
    seen = [topic.seen[subscriber] for topic in topics if subscriber in topic.seen]
    return _with_copies(sum(each.received for each in seen), sum(each.again for each in seen))


def _seen(seen: SeenResult | None) -> str:
    return "" if seen is None else _with_copies(seen.received, seen.again)


def _with_copies(count: int, again: int) -> str:
    return f"{count:,}+{again:,}" if again else f"{count:,}"


def _yes_or_no(holds: bool) -> Text:
    return Text("yes", "green") if holds else Text("NO", "bold red")


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:,.2f}"


def _must_be_zero(count: int) -> Text:
    return Text("0", "green") if count == 0 else Text(f"{count:,}", "bold red")
