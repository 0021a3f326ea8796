"""What a killed broker may have sent comes again with DUP; what it cannot have sent, and orderly ends, are exact."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

from broker_adapter.mqtt_codec import Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Disconnect, Puback, Publish
from tests.mqtt.cluster.processes import NEEDS_CLUSTER, Cluster, running_cluster
from tests.mqtt.serving import Client

pytestmark = [NEEDS_CLUSTER, pytest.mark.timeout(180)]

PROGRAM = ("tests.mqtt.cluster.rarely_saving_broker",)
BOTH = [Version.V311, Version.V5]
ELSEWHERE, RESTARTED = "elsewhere", "restarted"
PLACES = [ELSEWHERE, RESTARTED]
SENT = 60


async def connect(port: int, name: str, version: Version = Version.V5, *, receive_maximum: int | None = None) -> Client:
    is_new = version is Version.V5
    kept = Properties(session_expiry_interval=3600, receive_maximum=receive_maximum) if is_new else Properties()
    while True:
        client = Client(await trio.open_tcp_stream("127.0.0.1", port), version)
        answer = await client.connect(name, clean_start=False, properties=kept)
        if answer.reason_code == ReasonCode.SUCCESS:
            return client
        # A busy machine stopped this broker for a second, so it refuses clients for a moment.
        assert answer.reason_code == ReasonCode.SERVER_UNAVAILABLE
        await client.stream.aclose()


async def publish(client: Client, topic: str, payloads: Iterable[bytes], qos: int = 1, **options: bool) -> None:
    for payload in payloads:
        assert await client.publish(topic, payload, qos, **options) < ReasonCode.UNSPECIFIED_ERROR


def numbered(word: str, count: int) -> list[bytes]:
    return [b"%b %d" % (word.encode(), number) for number in range(count)]


async def dups(client: Client, count: int) -> dict[bytes, bool]:
    """Whether the next messages have DUP, by payload; they are not acknowledged."""
    found: dict[bytes, bool] = {}
    for _ in range(count):
        message = await client.expect(Publish)
        assert message.payload not in found
        found[message.payload] = message.dup
    return found


async def back(cluster: Cluster, place: str, name: str, version: Version = Version.V5) -> Client:
    """Kill the first broker with SIGKILL, and return its client at another one, or at the same one."""
    cluster.brokers[0].end(signal.SIGKILL)
    if place == RESTARTED:
        cluster.brokers[0].start()
    return await connect(cluster.port(0 if place == RESTARTED else 1), name, version)


@pytest.mark.slow("kills processes of a cluster")
@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("place", PLACES)
async def test_what_a_killed_broker_sent_comes_again_with_dup(tmp_path: Path, version: Version, place: str) -> None:
    sent, later = numbered("sent", SENT), numbered("later", SENT)
    with running_cluster(tmp_path, brokers=2, program=PROGRAM) as cluster:
        publisher = await connect(cluster.port(1), "publisher")
        reader = await connect(cluster.port(0), "reader", version)
        await reader.subscribe("t", qos=1)
        await publish(publisher, "t", sent)
        for number in range(SENT):
            message = await reader.expect(Publish)
            assert (message.payload, message.dup) == (sent[number], False)
            if number < SENT // 2:
                await reader.send(Puback(message.packet_id))
        await reader.silent()
        again = await back(cluster, place, "reader", version)
        assert await dups(again, SENT) == dict.fromkeys(sent, True)
        await publish(publisher, "t", later)
        assert await dups(again, SENT) == dict.fromkeys(later, False)
        for client in (publisher, reader, again):
            await client.stream.aclose()


@pytest.mark.slow("kills processes of a cluster")
@pytest.mark.parametrize("place", PLACES)
async def test_what_was_retained_or_for_a_group_comes_again_with_dup(tmp_path: Path, place: str) -> None:
    kept, shared = numbered("retained", 5), numbered("shared", 5)
    with running_cluster(tmp_path, brokers=2, program=PROGRAM) as cluster:
        publisher = await connect(cluster.port(1), "publisher")
        for number, payload in enumerate(kept):
            await publish(publisher, f"kept/{number}", [payload], retain=True)
        reader = await connect(cluster.port(0), "reader")
        await reader.subscribe("$share/g/shared", qos=1)
        await reader.subscribe("kept/#", qos=1)
        assert await dups(reader, 5) == dict.fromkeys(kept, False)
        await publish(publisher, "shared", shared)
        assert await dups(reader, 5) == dict.fromkeys(shared, False)
        again = await back(cluster, place, "reader")
        assert await dups(again, 10) == dict.fromkeys([*kept, *shared], True)
        # A retained message that is requested, and a replay, are sent for the first time for that request.
        await again.subscribe("kept/0", qos=1)
        assert await dups(again, 1) == {kept[0]: False}
        await again.subscribe("$replay/earliest/shared", qos=1)
        assert await dups(again, 5) == dict.fromkeys(shared, False)
        for client in (publisher, reader, again):
            await client.stream.aclose()


@pytest.mark.slow("kills processes of a cluster")
@pytest.mark.parametrize("place", PLACES)
async def test_at_qos_2_dup_says_exactly_what_was_sent(tmp_path: Path, place: str) -> None:
    """Before each PUBLISH its packet identifier was stored, so the next broker knows which messages were sent."""
    payloads = numbered("sent", 6)
    with running_cluster(tmp_path, brokers=2, program=PROGRAM) as cluster:
        publisher = await connect(cluster.port(1), "publisher")
        reader = await connect(cluster.port(0), "reader", receive_maximum=3)
        await reader.subscribe("t", qos=2)
        await publish(publisher, "t", payloads, qos=2)
        assert await dups(reader, 3) == dict.fromkeys(payloads[:3], False)
        await reader.silent()
        again = await back(cluster, place, "reader")
        assert await dups(again, 6) == {payload: payload in payloads[:3] for payload in payloads}
        for client in (publisher, reader, again):
            await client.stream.aclose()


async def end_in_order(cluster: Cluster, client: Client, how: str) -> None:
    """End the connection of a client at the first broker so that the broker stores the session."""
    if how == "taken over":
        return
    if how == "DISCONNECT":
        await client.leave()
    elif how == "connection lost":
        await trio.aclose_forcefully(client.stream)
    else:
        assert cluster.brokers[0].end(signal.SIGTERM) == 0
        cluster.brokers[0].start()
        assert (await client.expect(Disconnect)).reason_code == ReasonCode.SERVER_SHUTTING_DOWN
        await client.stream.aclose()


@pytest.mark.slow("starts a cluster")
@pytest.mark.parametrize("how", ["DISCONNECT", "connection lost", "taken over", "SIGTERM"])
@pytest.mark.parametrize("number", [0, 1])
async def test_after_an_orderly_end_dup_says_exactly_what_was_sent(tmp_path: Path, how: str, number: int) -> None:
    """Only what was sent has DUP: not what the client had no room for, nor what came while it was away."""
    payloads, away = numbered("sent", 20), numbered("away", 10)
    with running_cluster(tmp_path, brokers=2, program=PROGRAM) as cluster:
        publisher = await connect(cluster.port(1), "publisher")
        reader = await connect(cluster.port(0), "reader", receive_maximum=5)
        await reader.subscribe("t", qos=1)
        await publish(publisher, "t", payloads)
        assert await dups(reader, 5) == dict.fromkeys(payloads[:5], False)
        await reader.silent()
        await end_in_order(cluster, reader, how)
        await publish(publisher, "t", away)
        again = await connect(cluster.port(number), "reader")
        assert await dups(again, 30) == {payload: payload in payloads[:5] for payload in [*payloads, *away]}
        for client in (publisher, reader, again):
            await client.stream.aclose()


@pytest.mark.slow("kills processes of a cluster")
async def test_what_was_sent_before_a_crash_has_dup_after_an_orderly_end_in_between(tmp_path: Path) -> None:
    """The client ends in order at the next broker before that one could send all that the killed one had sent."""
    sent, later = numbered("sent", 20), numbered("later", 5)
    with running_cluster(tmp_path, brokers=2, program=PROGRAM) as cluster:
        publisher = await connect(cluster.port(1), "publisher")
        reader = await connect(cluster.port(0), "reader")
        await reader.subscribe("t", qos=1)
        await publish(publisher, "t", sent)
        assert await dups(reader, 20) == dict.fromkeys(sent, False)
        cluster.brokers[0].end(signal.SIGKILL)
        second = await connect(cluster.port(1), "reader", receive_maximum=5)
        assert await dups(second, 5) == dict.fromkeys(sent[:5], True)
        await second.leave()
        third = await connect(cluster.port(1), "reader")
        assert await dups(third, 20) == dict.fromkeys(sent, True)
        await publish(publisher, "t", later)
        assert await dups(third, 5) == dict.fromkeys(later, False)
        for client in (publisher, reader, third):
            await client.stream.aclose()
