"""The rows about cache queues: their names, what they are compared to, and their goals. No measuring here."""

from __future__ import annotations

from typing import Final

from benchmarks.runs import Goal, Row

VALUE_BYTES: Final = 200
CHUNK_RECORDS: Final = 100
BATCH_RECORDS: Final = 500
CONNECTIONS: Final = 10
SYNCED: Final = "fsync"

GOAL_PUT_PER_S: Final = 100_000.0
GOALS_BRIDGED_PER_S: Final = {"http": 25_500.0, "postgresql": 16_500.0}
"""1.5 times what was measured before (docs/benchmarks.md has both figures)."""
GOALS_DRAINED_PER_S: Final = {"http": 20_000.0, "postgresql": 30_000.0}

PUT: Final = "queue.put"
PUT_CPU: Final = "queue.put-cpu"
PUT_MQTT: Final = "queue.put-mqtt"
PUT_MQTT_PLAIN: Final = "queue.put-mqtt-plain"

EXPORT: Final = "export.jdbc"
EXPORT_COPY: Final = "export.copy"

SINKS: Final = {
    "http": ("a web service that parses the JSON", "reply"),
    "postgresql": ("PostgreSQL by COPY", SYNCED),
    "mqtt": ("mosquitto, QoS 1, kept for a session that is away", "memory"),
    "redis": ("a Redis stream, appendfsync always", SYNCED),
    "files": ("Parquet files", SYNCED),
}
"""By kind: the destination, and what has happened there before a batch counts as accepted."""


BRIDGED: Final = ("http", "postgresql")
"""Kinds of sinks that get messages while they are published."""


def bridged_key(kind: str) -> str:
    """Key of the rate at which messages reach the sink while they are published."""
    return f"queue.bridged-{kind}"


def drain_keys(kind: str) -> tuple[str, str]:
    """Keys of the rate and of the driver's processor time."""
    return f"queue.drain-{kind}", f"queue.drain-{kind}-cpu"


def rows(*, waiting: int) -> list[Row]:
    """All rows.

    Args:
        waiting: Records that wait when the sink is available again.
    """
    return [*_putting(), *_draining(waiting), *_bridged(waiting), *_exported(waiting)]


def _putting() -> list[Row]:
    words = f"{VALUE_BYTES} B values into a file-mode queue while its sink is out"
    publishes = f"QoS 1 publishes, {VALUE_BYTES} B, {CONNECTIONS} connections"
    return [
        Row(PUT, f"{words}, {CHUNK_RECORDS} at a time", "records/s", SYNCED, goal=Goal(GOAL_PUT_PER_S)),
        Row(PUT_CPU, "processor time of the process that puts them, a record", "us"),
        Row(PUT_MQTT_PLAIN, f"{publishes}, no bridge", "messages/s", SYNCED),
        Row(PUT_MQTT, f"{publishes}, of a bridge whose sink is out", "messages/s", SYNCED, peer=PUT_MQTT_PLAIN),
    ]


def _draining(waiting: int) -> list[Row]:
    found: list[Row] = []
    for kind, (words, promise) in SINKS.items():
        rate, cpu = drain_keys(kind)
        goal = GOALS_DRAINED_PER_S.get(kind)
        found += [
            Row(
                rate,
                f"{waiting:,} records of {VALUE_BYTES} B from a queue to {words}, {BATCH_RECORDS} a batch",
                "records/s",
                promise,
                goal=None if goal is None else Goal(goal),
            ),
            Row(cpu, "processor time of the bridge, a record", "us"),
        ]
    return found


def _bridged(count: int) -> list[Row]:
    words = f"{count:,} QoS 1 publishes, {VALUE_BYTES} B, {CONNECTIONS} connections, by a bridge to"
    return [
        Row(
            bridged_key(kind),
            f"{words} {SINKS[kind][0]}",
            "messages/s",
            SINKS[kind][1],
            peer=PUT_MQTT_PLAIN,
            goal=Goal(GOALS_BRIDGED_PER_S[kind]),
        )
        for kind in BRIDGED
    ]


def _exported(count: int) -> list[Row]:
    return [
        Row(EXPORT_COPY, f"{count:,} rows of an export by one plain COPY into PostgreSQL", "rows/s", SYNCED),
        Row(EXPORT, "the same rows by an export of Spark to JDBC", "rows/s", SYNCED, peer=EXPORT_COPY),
    ]
