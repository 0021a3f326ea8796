"""The value of `--from`: earliest, latest, an offset, a time. Pure; the caller provides the present time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo

from command_line.boundary import UsageError
from command_line.quantities import parse_duration_us
from shards.position import Start

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET = re.compile(r"[0-9]{1,18}")


def parse_start(text: str, *, now_us: int, local_zone: tzinfo | None = None) -> Start:
    """The position that `--from` names.

    Args:
        text: `earliest`, `latest`, an offset, a time in ISO 8601 (`2026-01-31T12:00:00Z`; without a zone it is local
            time, a date alone is its midnight), or a duration back from now with a minus (`-15m`).
        now_us: The time from which durations are subtracted.
        local_zone: Zone of times without one; by default that of the machine.

    Raises:
        UsageError: The text is none of these.
    """
    if text == "earliest":
        return Start.earliest()
    if text == "latest":
        return Start.latest()
    if _OFFSET.fullmatch(text):
        return Start.offset(int(text))
    if text.startswith("-"):
        return Start.time(max(0, now_us - parse_duration_us(text[1:])))
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=local_zone) if local_zone is not None else moment.astimezone()
        since_epoch = moment - _EPOCH
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"--from {text!r} is none of: earliest, latest, an offset, an ISO 8601 time such as 2026-01-31T12:00:00Z, "
            "a duration back from now such as -15m"
        ) from error
    return Start.time(max(0, (since_epoch.days * 86_400 + since_epoch.seconds) * 1_000_000 + since_epoch.microseconds))
