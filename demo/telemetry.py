"""This machine's live telemetry: the values in files under ``/proc``, as plain readings. Publishing is not done here.

The parsers are pure. They skip what is missing: containers hide files, lines and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import attrs

Reading = dict[str, str | int | float]
"""One sample at one moment: names and values, ready for JSON."""

PROC: Final = Path("/proc")
ROOT: Final = "host"
"""First level of all topics."""

_SECTOR_BYTES = 512
_CPU_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_MEMORY_FIELDS: Mapping[str, str] = {
    "MemTotal": "total_bytes",
    "MemFree": "free_bytes",
    "MemAvailable": "available_bytes",
    "Buffers": "buffers_bytes",
    "Cached": "cached_bytes",
    "Dirty": "dirty_bytes",
    "SwapTotal": "swap_total_bytes",
    "SwapFree": "swap_free_bytes",
}
_NETWORK_FIELDS: Mapping[int, str] = {
    0: "received_bytes",
    1: "received_packets",
    2: "receive_errors",
    3: "receive_drops",
    8: "sent_bytes",
    9: "sent_packets",
    10: "send_errors",
    11: "send_drops",
}


def parse_cpu(text: str) -> list[Reading]:
    """``/proc/stat``: the clock ticks of each core by state."""
    readings: list[Reading] = []
    for line in text.splitlines():
        name, *words = line.split() or [""]
        core = name.removeprefix("cpu")
        if name.startswith("cpu") and core.isdecimal():
            ticks = _numbers(words)
            readings.append({"core": int(core), **dict(zip(_CPU_FIELDS, ticks, strict=False))})
    return [reading for reading in readings if len(reading) > 1]


def parse_memory(text: str) -> list[Reading]:
    """``/proc/meminfo``: one reading, sizes in bytes."""
    reading: Reading = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        numbers = _numbers(rest.split()[:1])
        if name in _MEMORY_FIELDS and numbers:
            reading[_MEMORY_FIELDS[name]] = numbers[0] * 1024
    return [reading] if reading else []


def parse_disk(text: str) -> list[Reading]:
    """``/proc/diskstats``: the counters of each device that has ever been used, loop and RAM devices left out."""
    readings: list[Reading] = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 3 or words[2].startswith(("loop", "ram")):
            continue
        counts = _numbers(words[3:])
        if len(counts) >= 10 and any(counts):
            readings.append(
                {
                    "device": words[2],
                    "reads": counts[0],
                    "read_bytes": counts[2] * _SECTOR_BYTES,
                    "writes": counts[4],
                    "written_bytes": counts[6] * _SECTOR_BYTES,
                    "in_flight": counts[8],
                    "busy_ms": counts[9],
                }
            )
    return readings


def parse_network(text: str) -> list[Reading]:
    """``/proc/net/dev``: the counters of each interface that has ever been used."""
    readings: list[Reading] = []
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        counts = _numbers(rest.split())
        if colon and any(counts):
            fields = {field: counts[at] for at, field in _NETWORK_FIELDS.items() if at < len(counts)}
            readings.append({"interface": name.strip(), **fields})
    return readings


def parse_load(text: str) -> list[Reading]:
    """``/proc/loadavg``: one reading with the three averages and the processes, running and in all."""
    words = text.split()
    try:
        reading: Reading = {f"load_{minutes}min": float(word) for minutes, word in zip((1, 5, 15), words, strict=False)}
    except ValueError:
        return []
    if len(words) > 3:
        running, _, total = words[3].partition("/")
        reading |= dict(zip(("running", "processes"), _numbers([running, total]), strict=False))
    return [reading] if reading else []


@attrs.frozen(slots=True)
class Source:
    """One kind of telemetry.

    Attributes:
        topic: Last level of its topic.
        file: Path below ``/proc``.
        parse: Converts the file's text to readings.
        metric: Field of the readings in the report's second table.
    """

    topic: str
    file: str
    parse: Callable[[str], list[Reading]]
    metric: str

    def sample(self, proc: Path = PROC) -> list[Reading]:
        """The present readings of the file; empty if it cannot be read here."""
        try:
            text = (proc / self.file).read_text("utf-8", "replace")
        except OSError:
            return []
        return self.parse(text)


SOURCES: Final = (
    Source("cpu", "stat", parse_cpu, "user"),
    Source("memory", "meminfo", parse_memory, "available_bytes"),
    Source("disk", "diskstats", parse_disk, "busy_ms"),
    Source("network", "net/dev", parse_network, "received_bytes"),
    Source("load", "loadavg", parse_load, "load_1min"),
)


def available_sources(proc: Path = PROC) -> dict[Source, int]:
    """The sources that have readings on this machine, with the number of readings of each sample."""
    counts = {source: len(source.sample(proc)) for source in SOURCES}
    return {source: count for source, count in counts.items() if count}


def _numbers(words: list[str]) -> list[int]:
    """The leading integers of a list of words."""
    numbers: list[int] = []
    for word in words:
        if not word.isdecimal():
            break
        numbers.append(int(word))
    return numbers
