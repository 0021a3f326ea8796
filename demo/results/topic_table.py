"""The table of a run: a row for each topic, and what both demos say of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from demo.evidence.check import SeenResult, TopicResult
from demo.results.figures import Percentiles

_NAME_WIDTH: Final = 16


@attrs.frozen(slots=True, kw_only=True)
class Column:
    """A column of the table.

    Attributes:
        heading: Its heading, in two lines.
        cell: Its content for a topic.
        footer: Below all topics.
        is_left: Aligned to the left.
    """

    heading: str
    cell: Callable[[TopicResult], str | Text]
    footer: str | Text = ""
    is_left: bool = False


def topic_table(
    topics: Sequence[TopicResult],
    *,
    after_qos: Sequence[Column] = (),
    after_stored: Sequence[Column] = (),
    after_received: Sequence[Column] = (),
) -> Table:
    """The table; the columns that only one of the demos has are given."""
    subscribers = list(dict.fromkeys(name for topic in topics for name in topic.seen))
    columns = (
        Column(heading="topic\n(one shard each)", cell=lambda topic: topic.name, footer="all", is_left=True),
        Column(heading="QoS", cell=lambda topic: str(topic.qos)),
        *after_qos,
        Column(heading="pub-\nlished", cell=lambda topic: f"{topic.published:,}", footer=_sum(topics, "published")),
        Column(
            heading="acked",
            cell=lambda topic: f"{topic.acknowledged:,}" if topic.qos else "",
            footer=_sum(topics, "acknowledged"),
        ),
        Column(
            heading="stored",
            cell=lambda topic: with_copies(topic.stored, topic.stored_again) if topic.is_stored else "",
            footer=_sum(topics, "stored"),
        ),
        *after_stored,
        *(_received(topics, name) for name in subscribers),
        *after_received,
        _promise("lost", topics, lambda topic: topic.lost_in_all),
        _promise("doubled", topics, lambda topic: topic.doubled_in_all),
        Column(
            heading="in\norder",
            cell=lambda topic: yes_or_no(topic.in_order and all(each.in_order for each in topic.seen.values())),
            is_left=True,
        ),
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, show_footer=True, collapse_padding=True)
    for column in columns:
        table.add_column(column.heading, column.footer, justify="left" if column.is_left else "right", no_wrap=True)
    for topic in topics:
        table.add_row(*(column.cell(topic) for column in columns))
    return table


def lines_of(figures: Mapping[str, str]) -> list[str]:
    """Lines of a summary, by what they tell."""
    return [f"{what:<{_NAME_WIDTH}}{text}" for what, text in figures.items()]


def pace_line(topics: Sequence[TopicResult], seconds: float, size_bytes: int) -> str:
    """How much was published, and how fast."""
    published, seconds = sum(topic.published for topic in topics), max(seconds, 1e-9)
    pace = f"{published / seconds:,.0f} messages/s, {size_bytes / seconds / 1e6:.2f} MB/s"
    return f"{published:,} messages in {seconds:.1f} s: {pace} (the pace of the sampling, no limit)"


def acknowledged_line(acknowledging: Mapping[str, Percentiles], longest: str) -> str:
    """How long acknowledgements took; ``longest`` is the cause of the longest."""
    by_qos = (
        f"{qos} after {each.p50_ms:.1f} ms (p50), {each.p99_ms:,.1f} ms (p99)" for qos, each in acknowledging.items()
    )
    longest_ms = max((each.longest_ms for each in acknowledging.values()), default=0.0)
    return f"{'; '.join(by_qos)}; longest {longest_ms:,.0f} ms ({longest})"


def delivered_line(delivering: Percentiles) -> str:
    """How long deliveries took."""
    return (
        f"{delivering.p50_ms:.1f} ms (p50), {delivering.p99_ms:,.1f} ms (p99) after the publish, from broker to broker"
    )


def away_line(away_s: float, catching_up: tuple[int, float]) -> str:
    """What the durable session got after its return."""
    return (
        f"a durable session was away for {away_s:.1f} s and got {catching_up[0]:,} messages "
        f"at another broker in {catching_up[1]:.2f} s"
    )


def with_copies(count: int, again: int) -> str:
    """A count, and the copies beyond."""
    return f"{count:,}+{again:,}" if again else f"{count:,}"


def yes_or_no(holds: bool) -> Text:
    """Whether a promise was kept."""
    return Text("yes", "green") if holds else Text("NO", "bold red")


def must_be_zero(count: int) -> Text:
    """A count of broken promises."""
    return Text("0", "green") if count == 0 else Text(f"{count:,}", "bold red")


def _sum(topics: Sequence[TopicResult], field: str) -> str:
    return f"{sum(getattr(topic, field) for topic in topics):,}"


def _promise(heading: str, topics: Sequence[TopicResult], count: Callable[[TopicResult], int]) -> Column:
    return Column(
        heading=heading, cell=lambda topic: must_be_zero(count(topic)), footer=must_be_zero(sum(map(count, topics)))
    )


def _received(topics: Sequence[TopicResult], name: str) -> Column:
    seen = [topic.seen[name] for topic in topics if name in topic.seen]
    return Column(
        heading=f"{name}\nreceived",
        cell=lambda topic: _seen(topic.seen.get(name)),
        footer=with_copies(sum(each.received for each in seen), sum(each.again for each in seen)),
    )


def _seen(seen: SeenResult | None) -> str:
    return "" if seen is None else with_copies(seen.received, seen.again)
