"""The rows about MQTT: their names, what they are compared to, and their goals. No measuring here."""

from __future__ import annotations

from benchmarks.runs import Goal, Row

CONNECTIONS = 10
PAYLOAD_BYTES = 100
SYNCED = "fsync"
NOT_SYNCED = "no fsync"
IN_MEMORY = "memory"

GOAL_PUBLISHES_PER_S = 40_000.0
GOAL_LATENCY_US = 3000.0
GOAL_IDLE_MB = 300.0
GOAL_IDLE_EACH_BYTES = 8192.0
GOAL_DRAINED_PER_S = 50_000.0

OURS = "mqtt"
MOSQUITTO = "mqtt.mosquitto"
NATS = "mqtt.nats"
NATS_SYNCED = "mqtt.nats-synced"
AMQTT = "mqtt.amqtt"
SEVERAL = "mqtt.processes"
PROCESSES = 2


def rows(*, idle: int, queued: int) -> list[Row]:
    """All rows.

    Args:
        idle: Number of idle connections; the goal is for 10,000.
        queued: Messages waiting for a session; the goal is for 100,000.
    """
    return [*_publishing(), *_across(), *_draining(queued), *_idle(idle)]


def _publishing() -> list[Row]:
    words = f"QoS 1 publishes, {PAYLOAD_BYTES} B, {CONNECTIONS} connections"
    return [
        Row(f"{MOSQUITTO}.publish", f"mosquitto, {words}", "messages/s", NOT_SYNCED),
        Row(f"{NATS}.publish", f"NATS MQTT on JetStream file, {words}", "messages/s", NOT_SYNCED),
        Row(f"{NATS_SYNCED}.publish", f"the same, sync_interval always, {words}", "messages/s", SYNCED),
        Row(f"{AMQTT}.publish", f"amqtt, {words}", "messages/s", IN_MEMORY),
        Row(
            f"{OURS}.publish",
            words,
            "messages/s",
            SYNCED,
            peer=f"{MOSQUITTO}.publish",
            goal=Goal(1.0, of=f"{MOSQUITTO}.publish"),
            more_goals=(Goal(GOAL_PUBLISHES_PER_S),),
        ),
        Row(
            f"{SEVERAL}.publish",
            f"the same to one broker of {PROCESSES} processes",
            "messages/s",
            SYNCED,
            peer=f"{OURS}.publish",
            goal=Goal(1.5, of=f"{MOSQUITTO}.publish"),
        ),
    ]


def _across() -> list[Row]:
    found: list[Row] = []
    for key, words, promise in (
        (MOSQUITTO, "mosquitto, one bridged to the other", NOT_SYNCED),
        (NATS, "NATS MQTT, cluster of three", NOT_SYNCED),
        (NATS_SYNCED, "the same, sync_interval always", SYNCED),
        (OURS, "two brokers", SYNCED),
    ):
        ours = key == OURS
        found += [
            Row(
                f"{key}.across-p50",
                f"{words}: QoS 1 publish at one to delivery at another, 1,000 messages/s, p50",
                "us",
                promise,
                peer=f"{NATS}.across-p50" if ours else "",
                goal=Goal(1.5, of=f"{NATS}.across-p50", at_most=True) if ours else None,
                more_goals=(Goal(GOAL_LATENCY_US, at_most=True),) if ours else (),
            ),
            Row(
                f"{key}.across-p99",
                "the same, p99",
                "us",
                promise,
                peer=f"{NATS}.across-p99" if ours else "",
                goal=Goal(1.5, of=f"{NATS}.across-p99", at_most=True) if ours else None,
            ),
        ]
    return found


def _draining(queued: int) -> list[Row]:
    words = f"a session that was away receives {queued:,} messages"
    return [
        Row(f"{MOSQUITTO}.drain", f"mosquitto, {words}", "messages/s", IN_MEMORY),
        Row(f"{NATS}.drain", f"NATS MQTT, {words}", "messages/s", "file"),
        Row(f"{NATS_SYNCED}.drain", f"the same, sync_interval always, {words}", "messages/s", "file"),
        Row(
            f"{OURS}.drain",
            words,
            "messages/s",
            "file",
            peer=f"{NATS}.drain",
            goal=Goal(0.8, of=f"{NATS}.drain"),
            more_goals=(Goal(GOAL_DRAINED_PER_S),),
        ),
    ]


def _idle(idle: int) -> list[Row]:
    found: list[Row] = []
    for key, words in ((MOSQUITTO, "mosquitto, "), (NATS, "NATS MQTT, "), (AMQTT, "amqtt, "), (OURS, "")):
        ours = key == OURS
        found += [
            Row(
                f"{key}.idle",
                f"{words}resident memory with {idle:,} idle connections",
                "MB",
                "RSS",
                peer=f"{NATS}.idle" if ours else "",
                goal=Goal(GOAL_IDLE_MB, at_most=True) if ours else None,
            ),
            Row(
                f"{key}.idle-each",
                f"{words}memory an idle connection costs",
                "B",
                "RSS",
                goal=Goal(GOAL_IDLE_EACH_BYTES, at_most=True) if ours else None,
            ),
        ]
    return found
