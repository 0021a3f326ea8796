"""The records that a command shows: from where it reads, an end, a count, a first time, and their lines. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, tzinfo

import attrs
import msgspec

from command_line.boundary import UsageError
from command_line.quantities import parse_duration_us
from journal.protocol.record_json import record_fields
from shards.format.record import Gap, StoredRecord
from shards.position import Start


@attrs.define(slots=True)
class Selection:
    """Selects records from consecutive fetches.

    Attributes:
        end_offset: No records from this offset on; None for no end.
        count: Number of records still to show, without gaps; None for no limit.
        from_us: Skip records up to the first whose timestamp is not before this time; 0 skips none. A read by time
            finds the batch, whose first records may be older.
        finished: No later record can be selected.
    """

    end_offset: int | None = None
    count: int | None = None
    from_us: int = 0
    finished: bool = False

    def __attrs_post_init__(self) -> None:
        self.finished = self.count is not None and self.count <= 0

    def take(self, records: Sequence[StoredRecord | Gap]) -> list[StoredRecord | Gap]:
        """The records to show from fetched ones, in the order of offsets."""
        chosen: list[StoredRecord | Gap] = []
        for record in records:
            if self.finished:
                break
            is_gap = isinstance(record, Gap)
            offset = record.first_offset if isinstance(record, Gap) else record.offset
            if self.end_offset is not None and offset >= self.end_offset:
                self.finished = True
                break
            if not isinstance(record, Gap) and self.from_us:
                if record.timestamp_us < self.from_us:
                    continue
                self.from_us = 0
            chosen.append(record)
            if self.count is not None and not is_gap:
                self.count -= 1
                self.finished = self.count == 0
        return chosen


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
    if text.startswith("-") and _OFFSET.fullmatch(text[1:]):
        raise UsageError(
            f"--from {text}: offsets begin at 0, and a duration back from now has a unit, such as {text}m (minutes) or "
            f"-15m; `latest` is the end of the shard"
        )
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


def payload_lines(_shard: str, records: Iterable[StoredRecord]) -> Iterator[bytes]:
    """One payload a line, byte for byte. A payload with line breaks takes several lines; in JSON it does not."""
    return (record.value for record in records)


def topic_lines(shard: str, records: Iterable[StoredRecord]) -> Iterator[bytes]:
    """`topic payload` a line; the topic of a record without one is its shard's name."""
    return (f"{record.topic or shard} ".encode() + record.value for record in records)


def json_lines(shard: str, records: Iterable[StoredRecord | Gap]) -> Iterator[bytes]:
    """One JSON object a line, whole records; a lost range is `{"shard": ..., "gap": [first, next]}`."""
    for record in records:
        if isinstance(record, Gap):
            yield msgspec.json.encode({"shard": shard, "gap": [record.first_offset, record.next_offset]})
        else:
            yield msgspec.json.encode({"shard": shard, **record_fields(record, shard)})


def gap_note(shard: str, gap: Gap) -> str:
    """The message about a lost range."""
    most = gap.next_offset - gap.first_offset
    return (
        f"{shard}: offsets {gap.first_offset} to {gap.next_offset - 1} have no records: those that were in memory only "
        f"are lost, at most {most:,} (offsets are reserved ahead of their use)"
    )
