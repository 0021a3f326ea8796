"""Durations and sizes in input and output of people: `15m`, `7d`, `64MiB`. Pure; no clocks, no output."""

from __future__ import annotations

import re
from typing import Final

from command_line.boundary import UsageError

_UNITS_US: Final = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_UNITS_BYTES: Final = {
    "": 1,
    "b": 1,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
    "tb": 1_000_000_000_000,
    "k": 1 << 10,
    "m": 1 << 20,
    "g": 1 << 30,
    "t": 1 << 40,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_DURATION = re.compile(r"([0-9]+)(us|ms|s|m|h|d|w)")
_SIZE = re.compile(r"([0-9]+) ?([a-z]{0,3})")


def parse_duration_us(text: str) -> int:
    """Microseconds of a duration such as `90s`, `15m` or `1d12h`.

    Raises:
        UsageError: Not a duration.
    """
    total = 0
    position = 0
    for match in _DURATION.finditer(text):
        if match.start() != position:
            break
        total += int(match[1]) * _UNITS_US[match[2]]
        position = match.end()
    if not text or position != len(text):
        raise UsageError(f"{text!r} is not a duration; write numbers with us, ms, s, m, h, d or w, like 15m or 1d12h")
    return total


def parse_timeout_s(text: str) -> float:
    """Seconds of a timeout option; infinite for an empty text.

    Raises:
        UsageError: Not a duration, or zero.
    """
    if not text:
        return float("inf")
    duration_us = parse_duration_us(text)
    if not duration_us:
        raise UsageError(f"--timeout {text}: a timeout must be greater than zero; leave it out to wait without a limit")
    return duration_us / 1e6


def parse_duration_s(text: str) -> int:
    """Whole seconds of a duration.

    Raises:
        UsageError: Not a duration, or not a whole number of seconds.
    """
    duration_us = parse_duration_us(text)
    if duration_us % _UNITS_US["s"]:
        raise UsageError(f"{text!r} is not a whole number of seconds")
    return duration_us // _UNITS_US["s"]


def parse_size_bytes(text: str) -> int:
    """Bytes of a size such as `4096`, `64MiB` or `10GB` (`k`, `m`, `g`, `t` alone are powers of 1024).

    Raises:
        UsageError: Not a size.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS_BYTES:
        raise UsageError(f"{text!r} is not a size; write bytes, or a number with KiB, MiB, GiB, TiB, kB, MB, GB or TB")
    return int(match[1]) * _UNITS_BYTES[match[2]]


def format_duration(duration_s: int) -> str:
    """A duration for people, in the largest units that divide it: `7d`, `1h30m`."""
    if duration_s == 0:
        return "0s"
    parts = []
    for unit in ("d", "h", "m", "s"):
        count, duration_s = divmod(duration_s, _UNITS_US[unit] // _UNITS_US["s"])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
