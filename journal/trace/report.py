"""The rows of a trace as people read them. Pure."""

from __future__ import annotations

from typing import Any, Final

import attrs

from journal.trace.trace import LevelTimes, Options, Trace

COLUMNS: Final = ("path", "hop", "process", "from", "to", "p50 us", "p99 us", "share")
NUMERIC: Final = ("p50 us", "p99 us", "share")


def heading(level: LevelTimes) -> str:
    """A line about a level."""
    lost = f"; {level.lost_packets:,} packets lost" if level.lost_packets else ""
    found = min(path.messages for path in level.paths)
    missing = f", {found:,} of them found at all points" if found < level.messages else ""
    return (
        f"{level.load_percent} % of the highest rate: {level.rate_per_s:,.0f} messages/s, "
        f"{level.messages:,} messages{missing}{lost}"
    )


def rows(level: LevelTimes) -> list[tuple[str, ...]]:
    """A row for each hop, and one for each whole path; see `COLUMNS`."""
    found: list[tuple[str, ...]] = []
    for path in level.paths:
        if len(path.hops) > 1:
            found += [
                (path.name, hop.name, hop.process, hop.begin, hop.end, *_us(hop.p50_us, hop.p99_us), f"{hop.share:.0%}")
                for hop in path.hops
            ]
        begin, end = path.hops[0].begin, path.hops[-1].end
        found.append((path.name, "all", "", begin, end, *_us(path.p50_us, path.p99_us), "100%"))
    return found


def _us(*durations_us: float) -> tuple[str, ...]:
    return tuple(f"{duration_us:,.0f}" for duration_us in durations_us)


def as_json(traced: Trace, options: Options) -> dict[str, Any]:
    """The whole trace, for scripts."""
    return {
        "size_bytes": options.size_bytes,
        "highest_rate_per_s": traced.highest_rate_per_s,
        "levels": [attrs.asdict(level) for level in traced.levels],
    }
