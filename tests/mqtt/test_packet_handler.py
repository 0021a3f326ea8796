"""What a client may send when, the error when it breaks the rules, and that others do not notice."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from structlog.testing import CapturingLogger

from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt.publish.store_changes import Publisher
from broker_adapter.mqtt_codec import Packet, Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packets import (
    Auth,
    Connack,
    Disconnect,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Will,
)
from tests.mqtt.serving import Client, serving
from tests.patience import PATIENCE_S

BOTH = [Version.V311, Version.V5]


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize(
    ("data", "reason_code"),
    [
        (b"\x00\x00", ReasonCode.PROTOCOL_ERROR),
        (b"\x82\x02\x00\x01", ReasonCode.MALFORMED_PACKET),
        (b"\x36\x05\x00\x01a\x00\x01", ReasonCode.MALFORMED_PACKET),
        (b"\x30\x03\x00\x01#", ReasonCode.MALFORMED_PACKET),
        (b"\xc0\x01\x00", ReasonCode.MALFORMED_PACKET),
    ],
)
async def test_malformed_packets_end_one_connection_and_no_other(
    version: Version, data: bytes, reason_code: ReasonCode
) -> None:
    async with serving() as served:
        other = await served.client("other", version)
        client = await served.client("client", version)
        await client.stream.send_all(data)
        if version is Version.V5:
            answer = await client.expect(Disconnect)
            assert answer.reason_code in (reason_code, ReasonCode.PROTOCOL_ERROR)
        await client.closed()
        await other.silent()


@pytest.mark.parametrize(
    "packet",
    [Connack(), Suback(1, (ReasonCode.SUCCESS,)), Unsuback(1, (ReasonCode.SUCCESS,)), Pingresp()],
    ids=lambda packet: type(packet).__name__,
)
async def test_packets_that_only_servers_send_are_refused(packet: Packet) -> None:
    async with serving() as served:
        client = await served.client()
        await client.send(packet)
        await client.refused(ReasonCode.PROTOCOL_ERROR)


async def test_auth_is_refused_where_connect_named_no_method() -> None:
    async with serving() as served:
        client = await served.client()
        await client.send(Auth(ReasonCode.REAUTHENTICATE, Properties(authentication_method="SCRAM")))
        await client.refused(ReasonCode.PROTOCOL_ERROR)


async def test_a_packet_over_the_limit_is_refused() -> None:
    async with serving(limits=Limits(max_packet_bytes=1000)) as served:
        client = await served.client()
        await client.send(Publish("a", b"x" * 900))
        await client.silent()
        await client.send(Publish("a", b"x" * 1000))
        await client.refused(ReasonCode.PACKET_TOO_LARGE)


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize(
    ("packet", "answer"),
    [(Puback(9), None), (Pubcomp(9), None), (Pubrec(9), Pubrel(9)), (Pubrel(9), Pubcomp(9))],
    ids=lambda packet: type(packet).__name__,
)
async def test_answers_that_nothing_waits_for_are_put_up_with(
    version: Version, packet: Packet, answer: Packet | None
) -> None:
    async with serving() as served:
        client = await served.client("c", version)
        await client.send(packet)
        if answer is not None:
            assert await client.receive() == answer
        await client.silent()


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize(
    ("qos", "wrong"),
    [(1, Pubrec), (1, Pubcomp), (2, Puback), (2, Pubcomp)],
)
async def test_an_answer_of_the_wrong_kind_ends_the_connection(
    version: Version, qos: int, wrong: type[Puback | Pubrec | Pubcomp]
) -> None:
    async with serving() as served:
        client = await served.client("c", version)
        await client.subscribe("a", qos=qos)
        publisher = await served.client("p", version)
        await publisher.publish("a", b"x", qos)
        message = await client.expect(Publish)
        await client.send(wrong(message.packet_id))
        await client.refused(ReasonCode.PROTOCOL_ERROR)


async def test_more_messages_under_way_than_allowed_end_the_connection() -> None:
    async with serving(limits=Limits(receive_maximum=3)) as served:
        client = await served.client()
        for number in (1, 2, 3):
            await client.send(Publish("a", qos=2, packet_id=number))
            assert (await client.expect(Pubrec)).packet_id == number
        # Those that are complete count no more.
        await client.send(Pubrel(2))
        await client.expect(Pubcomp)
        assert await client.publish("a", qos=1) == ReasonCode.SUCCESS
        await client.send(Publish("a", qos=2, packet_id=2))
        await client.expect(Pubrec)
        await client.send(Publish("a", qos=2, packet_id=4))
        await client.refused(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)


@pytest.mark.parametrize(
    ("topic", "alias", "reason_code"),
    [
        ("a", 0, ReasonCode.TOPIC_ALIAS_INVALID),
        ("a", 4, ReasonCode.TOPIC_ALIAS_INVALID),
        ("", 2, ReasonCode.PROTOCOL_ERROR),
    ],
)
async def test_an_alias_that_may_not_be_used_ends_the_connection(
    topic: str, alias: int, reason_code: ReasonCode
) -> None:
    async with serving(limits=Limits(topic_alias_maximum=3)) as served:
        client = await served.client()
        await client.send(Publish(topic, properties=Properties(topic_alias=alias)))
        answer = await client.expect(Disconnect)
        assert answer.reason_code in (reason_code, ReasonCode.PROTOCOL_ERROR)
        await client.closed()


async def test_no_local_of_a_shared_subscription_ends_the_connection() -> None:
    async with serving() as served:
        client = await served.client()
        await client.send(Subscribe(1, (SubscriptionRequest("$share/g/a", 0, no_local=True),)))
        await client.refused(ReasonCode.PROTOCOL_ERROR)


# DISCONNECT and wills


async def watching(served: Any) -> Client:
    """A client that sees the wills of others."""
    watcher: Client = await served.client("watcher")
    await watcher.subscribe("will/#", qos=1)
    return watcher


@pytest.mark.parametrize("version", BOTH)
async def test_a_client_that_takes_its_leave_has_no_will(version: Version) -> None:
    async with serving() as served:
        watcher = await watching(served)
        client = await served.client("c", version, will=Will("will/c", b"gone"))
        await client.leave()
        other = await served.client("d", version, will=Will("will/d", b"gone"))
        await other.stream.aclose()
        assert (await watcher.message()).topic == "will/d"


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("how", ["closed", "malformed", "taken over"])
async def test_a_client_that_goes_without_a_word_has_its_will_published(version: Version, how: str) -> None:
    async with serving() as served:
        watcher = await watching(served)
        client = await served.client("c", version, will=Will("will/c", b"gone", 1))
        if how == "closed":
            await client.stream.aclose()
        elif how == "malformed":
            await client.stream.send_all(b"\xc0\x01\x00")
        else:
            await served.client("c", version)
        message = await watcher.message()
        assert (message.topic, message.payload, message.qos) == ("will/c", b"gone", 1)


async def test_disconnect_may_ask_for_the_will() -> None:
    async with serving() as served:
        watcher = await watching(served)
        client = await served.client("c", will=Will("will/c", b"gone"))
        await client.leave(ReasonCode.DISCONNECT_WITH_WILL)
        assert (await watcher.message()).topic == "will/c"


async def test_a_will_that_waits_is_not_published_when_the_client_returns() -> None:
    async with serving() as served:
        watcher = await watching(served)
        kept = Properties(session_expiry_interval=100)
        late = Will("will/c", b"gone", properties=Properties(will_delay_interval=50))
        client = await served.client("c", will=late, properties=kept)
        await client.stream.aclose()
        client = await served.client("c", clean_start=False, properties=kept)
        other = await served.client("d", will=Will("will/d", b"gone"))
        await other.stream.aclose()
        assert (await watcher.message()).topic == "will/d"


async def test_disconnect_may_change_how_long_the_session_is_kept() -> None:
    async with serving() as served:
        kept = Properties(session_expiry_interval=100)
        client = await served.client("c", properties=kept)
        await client.send(Disconnect(properties=Properties(session_expiry_interval=0)))
        await client.closed()
        client = served.dial()
        assert not (await client.connect("c", clean_start=False)).session_present


async def test_disconnect_may_not_keep_a_session_that_connect_did_not() -> None:
    async with serving() as served:
        client = await served.client("c")
        await client.send(Disconnect(properties=Properties(session_expiry_interval=100)))
        await client.refused(ReasonCode.PROTOCOL_ERROR)


# Faults of the broker's own


@pytest.mark.parametrize("version", BOTH)
async def test_a_crash_in_one_connection_ends_that_one_only(version: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Publisher.placement_of
    said = CapturingLogger()

    def placement_of(self: Publisher, message: Any) -> Any:
        if message.topic == "crash":
            raise RuntimeError("a fault")
        return original(self, message)

    async with serving() as served:
        monkeypatch.setattr(Publisher, "placement_of", placement_of)
        monkeypatch.setattr("broker_adapter.mqtt.connection.connection.log", said)
        other = await served.client("other", version)
        client = await served.client("client", version)
        await client.send(Publish("crash"))
        await client.refused(ReasonCode.UNSPECIFIED_ERROR)
        await other.publish("a", qos=1)
        assert served.broker.statistics.clients_connected == 1
        await served.client("client", version)
    [error] = [call for call in said.calls if call.method_name == "error"]
    assert error.args == ("connection failed",)
    assert str(error.kwargs["exc_info"]) == "a fault"


async def test_a_client_that_reads_nothing_does_not_hold_up_others() -> None:
    async with serving(limits=Limits(max_output_bytes=64 * 1024)) as served:
        deaf, hearing = await served.client("deaf"), await served.client("hearing")
        for client in (deaf, hearing):
            await client.subscribe("a", qos=1)
        publisher = await served.client("publisher")
        for number in range(100):
            await publisher.publish("a", b"%3d" % number + bytes(20_000), 1)
            with trio.fail_after(PATIENCE_S):
                assert (await hearing.message()).payload[:3] == b"%3d" % number
        payloads = [(await deaf.message()).payload[:3] for _ in range(100)]
        assert payloads == [b"%3d" % number for number in range(100)]
