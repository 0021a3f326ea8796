"""The options of the data source `journal`, in the style of Spark's Kafka source: names, values and defaults.

Spark passes options as texts, with names in lower case. Nothing is looked up here: `spark_export.snapshot` finds out
whether a shard or a path exists.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, Self, TypeVar

import attrs

from shards.errors import InvalidNameError
from shards.topics.names import validate_shard_name
from shards.topics.topic_filters import matches, validate_filter
from spark_export.errors import OptionError

Use = Literal["batch", "stream"]
_Value = TypeVar("_Value")

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SERVER_SCHEMES = ("journal://", "journals://", "journal+ws://", "journal+wss://")

# Spelled as users write them; Spark ignores the case.
_NAMES: Final = (
    "path",
    "server",
    "topics",
    "shards",
    "startingOffsets",
    "startingTimestamp",
    "startingVersion",
    "startingLsn",
    "asOfVersion",
    "endingOffsets",
    "minPartitions",
    "maxRecordsPerTrigger",
    "failOnDataLoss",
    "filterPushdown",
    "asQueue",
    "shardIds",
)
_BEGINNINGS: Final = ("startingTimestamp", "startingOffsets", "startingVersion", "startingLsn")
_LOWER_NAMES: Final = {name.lower(): name for name in _NAMES}
_ONLY_IN: Final[dict[str, Use]] = {
    "endingOffsets": "batch",
    "startingVersion": "stream",
    "startingLsn": "stream",
    "asOfVersion": "batch",
    "maxRecordsPerTrigger": "stream",
    "asQueue": "batch",
    "shardIds": "batch",
}


@attrs.frozen(slots=True)
class Positions:
    """Where to begin or to end in each shard.

    Attributes:
        default: ``earliest`` or ``latest``, for every shard that is not named.
        offsets: By shard name: an offset, ``earliest`` or ``latest``.
    """

    default: str
    offsets: dict[str, int | str] = attrs.field(factory=dict, hash=False)

    def of(self, shard: str, *, earliest: int, latest: int) -> int:
        """The offset in a shard that holds offsets from ``earliest`` up to ``latest``."""
        position = self.offsets.get(shard, self.default)
        if isinstance(position, int):
            return position
        return earliest if position == EARLIEST else latest


@attrs.frozen(slots=True)
class SourceOptions:
    """The options of one query.

    Attributes:
        path: A data directory, or a tree of sealed segments on any file system of pyarrow; empty if not given.
        server: URL of a journal server, as ``journal://host:port``; empty if not given.
        topics: Filters; records of topics that match one of them are read.
        shards: Filters; only shards that match one of them are read.
        starting: Where to begin.
        starting_us: Begin at the first record that is not older than this, in each shard, in microseconds since 1970;
            None if not given.
        starting_version: Begin after the records that the version before this one of the Delta table has (stream); None
            if not given.
        starting_lsn: Begin at the first record with this lsn or a higher one, in each shard (stream); None if not
            given.
        version: Read the records of this version of the Delta table (batch); None if not given.
        ending: Where to end (batch).
        min_partitions: Make at least this many partitions, if there are as many records; 0: no minimum.
        max_records_per_trigger: Most records of one micro-batch (stream); 0 for no limit.
        fail_on_data_loss: Whether missing records end the query with an error; otherwise they are skipped.
        filter_pushdown: Whether to take filters from Spark: see `spark_export.source` for when that is safe.
        as_queue: Read the records that a consumer would get rather than the history: of every topic, also those that
            begin with ``$``, but none that has expired when it is read.
        shard_ids: By shard: its required id; another shard of that name is not read.
    """

    path: str
    server: str
    topics: tuple[str, ...]
    shards: tuple[str, ...]
    starting: Positions
    starting_us: int | None
    ending: Positions
    min_partitions: int
    max_records_per_trigger: int
    fail_on_data_loss: bool
    filter_pushdown: bool
    as_queue: bool
    shard_ids: dict[str, int] = attrs.field(factory=dict, hash=False)
    starting_version: int | None = None
    starting_lsn: int | None = None
    version: int | None = None

    @property
    def starts_at_search(self) -> bool:
        """Whether the first offsets have to be looked for in the records."""
        return not (self.starting_us is None and self.starting_version is None and self.starting_lsn is None)

    def without_search(self) -> Self:
        """The same options for a query that has begun: it continues from its position."""
        return attrs.evolve(self, starting_us=None, starting_version=None, starting_lsn=None)

    def wants_shard(self, name: str) -> bool:
        """Whether a shard is to be read."""
        return any(matches(wanted, name) for wanted in self.shards)

    def wants_topic(self, topic: str) -> bool:
        """Whether records of a topic are to be returned."""
        return self.as_queue or any(matches(wanted, topic) for wanted in self.topics)


def parse_options(options: Mapping[str, str], use: Use | None = None) -> SourceOptions:
    """Parse the options of a query.

    Args:
        options: Names, in any case, and texts.
        use: Kind of the query; None if it is not known yet: then options that only one kind accepts are allowed.

    Raises:
        OptionError: An option is not valid; the message has its name, its value and the allowed values.
    """
    given = _known(options, use)
    path, server = given.get("path", ""), _read(given, "server", _server, "")
    if not path and not server:
        raise OptionError(
            "the data source needs one of the options 'path' (a data directory or a tree of sealed segments) and "
            "'server' (journal://host:port), and neither is given"
        )
    everything: tuple[str, ...] = ("#",)
    topics = _read(given, "topics", _filters, everything)
    beginnings = [name for name in _BEGINNINGS if name in given]
    if len(beginnings) > 1:
        first, second = beginnings[:2]
        raise OptionError(
            f"options {first!r} ({given[first]!r}) and {second!r} ({given[second]!r}) both say where to begin: "
            "give one of them"
        )
    _require_table(given, path, server)
    starting = _read(given, "startingOffsets", _positions, Positions(LATEST if use == "stream" else EARLIEST))
    if use == "batch" and starting.default == LATEST and not starting.offsets:
        raise _bad("startingOffsets", LATEST, "'earliest' or JSON in a batch query, which reads what is there already")
    if beginnings and "startingOffsets" not in given:
        starting = Positions(EARLIEST)
    ending = _read(given, "endingOffsets", _positions, Positions(LATEST))
    if ending.default == EARLIEST and not ending.offsets:
        raise _bad("endingOffsets", EARLIEST, "'latest' or JSON")
    return SourceOptions(
        path=path,
        server=server,
        topics=topics,
        shards=_read(given, "shards", _filters, topics),
        starting=starting,
        starting_us=_read(given, "startingTimestamp", _time, None),
        ending=attrs.evolve(ending, default=LATEST),
        min_partitions=_read(given, "minPartitions", _count, 0),
        max_records_per_trigger=_read(given, "maxRecordsPerTrigger", _count, 0),
        fail_on_data_loss=_read(given, "failOnDataLoss", _switch, default=True),
        filter_pushdown=_read(given, "filterPushdown", _switch, default=False),
        as_queue=_read(given, "asQueue", _switch, default=False),
        shard_ids=_read(given, "shardIds", _ids, {}),
        starting_version=_read(given, "startingVersion", _number, None),
        starting_lsn=_read(given, "startingLsn", _number, None),
        version=_read(given, "asOfVersion", _number, None),
    )


def _require_table(given: Mapping[str, str], path: str, server: str) -> None:
    """Refuse options about the Delta table where there is none, or another store is to be read."""
    for name in ("asOfVersion", "startingVersion"):
        if name in given and not path:
            raise OptionError(
                f"option {name!r} ({given[name]!r}) is about the Delta table in a data directory or a tree of sealed "
                "segments: give its path, too"
            )
    if "asOfVersion" in given and server:
        raise OptionError(
            f"option 'asOfVersion' ({given['asOfVersion']!r}) reads files alone, and option 'server' ({server!r}) "
            "other records as well: give one of them"
        )


def _known(options: Mapping[str, str], use: Use | None) -> dict[str, str]:
    given: dict[str, str] = {}
    for found, value in options.items():
        if found.lower() == "paths":
            raise OptionError(f"the data source reads one path at a time, load() was given several: {value}")
        name = _LOWER_NAMES.get(found.lower())
        if name is None:
            raise OptionError(f"unknown option {found!r} (value {value!r}); there are: {', '.join(_NAMES)}")
        only_in = _ONLY_IN.get(name, use)
        if use is not None and only_in != use:
            raise OptionError(
                f"option {name!r} (value {value!r}) is for a {only_in} query, this is a {use} query: leave it out"
            )
        given[name] = value
    return given


def _read(given: Mapping[str, str], name: str, read: Callable[[str, str], _Value], default: _Value) -> _Value:
    return read(name, given[name].strip()) if name in given else default


def _bad(name: str, value: str, allowed: str) -> OptionError:
    return OptionError(f"option {name!r} is {value!r}, it must be {allowed}")


def _server(name: str, value: str) -> str:
    url = value if "://" in value else f"journal://{value}"
    scheme = next((one for one in _SERVER_SCHEMES if url.startswith(one)), None)
    # The part behind it names files with secrets and certificates; the adapter parses it.
    host, _, port = url.removeprefix(scheme or "").partition("?")[0].rstrip("/").rpartition(":")
    if scheme is None or not host or not port.isdigit():
        raise _bad(name, value, "host:port, journal://host:port or journal+ws://host:port")
    return url


def _filters(name: str, value: str) -> tuple[str, ...]:
    """Filters separated by commas; or a JSON list, for filters that contain a comma."""
    allowed = "MQTT topic filters separated by commas, as 'sensors/+/temperature,alarms/#', or a JSON list of them"
    if value.startswith("["):
        found = _json(name, value, allowed)
        if not all(isinstance(one, str) for one in found):
            raise _bad(name, value, allowed)
    else:
        found = [one.strip() for one in value.split(",")]
    if not found:
        raise _bad(name, value, f"at least one; {allowed}")
    try:
        return tuple(dict.fromkeys(map(validate_filter, found)))
    except InvalidNameError as error:
        raise _bad(name, value, f"{allowed}: {error}") from error


def _positions(name: str, value: str) -> Positions:
    allowed = (
        f'\'{EARLIEST}\', \'{LATEST}\' or JSON of offsets by shard, as {{"sensors/1": 42, "sensors/2": "{EARLIEST}"}}'
    )
    if value in (EARLIEST, LATEST):
        return Positions(value)
    found = _json(name, value, allowed)
    if not isinstance(found, dict):
        raise _bad(name, value, allowed)
    for shard, offset in found.items():
        try:
            validate_shard_name(shard)
        except InvalidNameError as error:
            raise _bad(name, value, f"{allowed}: {error}") from error
        is_offset = isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset < 1 << 63
        if not is_offset and offset not in (EARLIEST, LATEST):
            raise _bad(name, value, f"{allowed}; that of shard {shard!r} is {offset!r}")
    return Positions(LATEST if name == "endingOffsets" else EARLIEST, found)


def _ids(name: str, value: str) -> dict[str, int]:
    allowed = 'JSON of ids by shard, as {"sensors/1": 42}'
    found = _json(name, value, allowed)
    if not isinstance(found, dict) or not all(type(one) is int and one >= 0 for one in found.values()):
        raise _bad(name, value, allowed)
    return found


def _json(name: str, value: str, allowed: str) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:
        raise _bad(name, value, allowed) from error


def _time(name: str, value: str) -> int | None:
    """A time in microseconds since the epoch."""
    allowed = (
        "milliseconds since the epoch, or a time in ISO 8601 as 2026-03-01T12:00:00Z (UTC if it names no zone), "
        "not before 1970"
    )
    if value.isdecimal():
        return int(value) * 1000
    try:
        found = datetime.fromisoformat(value)
    except ValueError as error:
        raise _bad(name, value, allowed) from error
    time_us = (found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH
    if time_us < timedelta(0):
        raise _bad(name, value, allowed)
    return time_us // timedelta(microseconds=1)


def _count(name: str, value: str) -> int:
    if not value.isdecimal() or not 0 < int(value) < 1 << 63:
        raise _bad(name, value, "an integer from 1 on")
    return int(value)


def _number(name: str, value: str) -> int:
    if not value.isdecimal() or int(value) >= 1 << 63:
        raise _bad(name, value, "an integer from 0 on")
    return int(value)


def _switch(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise _bad(name, value, "'true' or 'false'")
    return value.lower() == "true"
