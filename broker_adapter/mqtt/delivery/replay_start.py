"""The start of a replay: parses the text that a client writes for it. Pure; the caller passes the time."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from broker_adapter.mqtt_codec.text import shown
from shards.position import Start

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET: Final = re.compile(r"[0-9]{1,18}")
_AGO: Final = re.compile(r"-(?:[0-9]{1,9}[smhdw])+")
_PART: Final = re.compile(r"([0-9]+)([smhdw])")
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_replay_start(text: str, *, now_us: int) -> Start:
    """The start that ``replay-from`` names.

    Args:
        text: ``earliest``, an offset, a time in ISO 8601 (UTC unless it names a zone), or a time back from now as in
            ``-15m`` (units s, m, h, d, w).
        now_us: Present time, in microseconds since 1970; times back from now are relative to it.

    Raises:
        ValueError: It is none of these.
    """
    if text == "earliest":
        return Start.earliest()
    if _OFFSET.fullmatch(text):
        return Start.offset(int(text))
    if _AGO.fullmatch(text):
        ago_s = sum(int(count) * _UNITS_S[unit] for count, unit in _PART.findall(text))
        return Start.time(max(0, now_us - ago_s * 1_000_000))
    try:
        # Digits alone are an offset, but this one is too large.
        moment = datetime.fromisoformat("" if text.isdigit() else text)
        since_epoch = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - _EPOCH
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"replay-from {shown(text)} is none of: earliest, an offset, an ISO 8601 time such as "
            f"2026-01-31T12:00:00Z, a time back from now such as -15m"
        ) from error
    return Start.time(max(0, (since_epoch.days * 86_400 + since_epoch.seconds) * 1_000_000 + since_epoch.microseconds))
