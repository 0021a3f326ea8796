"""What the sink makes of a broker's words, and how it speaks to one."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from trio.testing import MockClock, wait_all_tasks_blocked

from broker_adapter.mqtt_codec import Packet, Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Connack, Disconnect, Puback, Publish
from broker_adapter.sinks import (
    Batch,
    BatchRefusedError,
    RowsRefusedError,
    Sink,
    SinkContext,
    SinkUnavailableError,
    Value,
)
from broker_adapter.sinks.kinds import find_kind
from broker_adapter.sinks.mqtt.settings import MqttSettings, Spoken, check
from journal.settings.values import ConfigurationError
from tests.sinks.mqtt.scripted_broker import ScriptedBroker, scripted_broker
from tests.sinks.stage import batch_of, write_window


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with scripted_broker() as made:
        yield made


@asynccontextmanager
async def sink_of(broker: ScriptedBroker, **settings: Any) -> AsyncIterator[Sink]:
    context = SinkContext(bridge="plant", queue_id="q-1", columns=("topic", "payload"), epoch=1)
    async with find_kind("mqtt").open(MqttSettings(f"127.0.0.1:{broker.port}", **settings), context) as sink:
        yield sink


def messages(*payloads: Value, first_offset: int = 0) -> Batch:
    return batch_of([{"topic": "a", "payload": payload} for payload in payloads], first_offset)


def payloads_of(published: Sequence[Publish]) -> list[bytes]:
    return [each.payload for each in published]


async def test_messages_are_what_the_settings_say(broker: ScriptedBroker) -> None:
    settings = {"topic": "north/{topic}", "retain": True, "user": "bridge", "password": "word", "keep_alive_s": 9}
    async with sink_of(broker, **settings) as sink:
        await sink.check()
        await sink.write(messages(b"\xff", "text", None, 7, {"a": [1]}))
    assert payloads_of(broker.published) == [b"\xff", b"text", b"", b"7", b'{"a":[1]}']
    assert {(each.topic, each.qos, each.retain) for each in broker.published} == {("north/a", 1, True)}
    (connect,) = broker.connects
    assert (connect.client_id, connect.username, connect.password) == ("journal-q-1", "bridge", b"word")
    assert (connect.keep_alive_s, connect.clean_start, connect.version) == (9, True, Version.V5)


async def test_no_more_is_under_way_than_the_broker_takes(broker: ScriptedBroker) -> None:
    broker.connack = Connack(properties=Properties(receive_maximum=3))
    async with sink_of(broker) as sink:
        await sink.check()
        assert await write_window(sink, [messages(*range(at, at + 5), first_offset=at) for at in range(0, 20, 5)]) == 4
    assert payloads_of(broker.published) == [str(n).encode() for n in range(20)]
    assert broker.most_together <= 3


async def test_a_message_that_is_too_large_is_refused_unsent(broker: ScriptedBroker) -> None:
    broker.connack = Connack(properties=Properties(maximum_packet_size=100))
    async with sink_of(broker) as sink:
        await sink.check()
        with pytest.raises(RowsRefusedError) as told:
            await sink.write(messages("a", "x" * 100, "b"))
    ((refusal),) = told.value.refusals
    assert refusal.index == 1
    assert "the broker accepts 100" in refusal.reason
    assert payloads_of(broker.published) == [b"a", b"b"]


async def test_topics_that_are_none_are_refused_unsent(broker: ScriptedBroker) -> None:
    async with sink_of(broker) as sink:
        await sink.check()
        rows = [{"topic": topic, "payload": topic} for topic in ("a", "b/#", None, "c")]
        with pytest.raises(RowsRefusedError) as told:
            await sink.write(batch_of(rows))
    assert [each.index for each in told.value.refusals] == [1, 2]
    assert payloads_of(broker.published) == [b"a", b"c"]


@pytest.mark.parametrize(
    "reason_code",
    [
        ReasonCode.UNSPECIFIED_ERROR,
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.TOPIC_NAME_INVALID,
        ReasonCode.PAYLOAD_FORMAT_INVALID,
    ],
)
async def test_a_message_that_the_broker_does_not_take(broker: ScriptedBroker, reason_code: ReasonCode) -> None:
    def answer(publish: Publish) -> Packet:
        if publish.payload == b"bad":
            return Puback(publish.packet_id, reason_code, Properties(reason_string="out\nof line"))
        return Puback(publish.packet_id, ReasonCode.NO_MATCHING_SUBSCRIBERS)

    broker.answer = answer
    async with sink_of(broker) as sink:
        await sink.check()
        with pytest.raises(RowsRefusedError) as told:
            await sink.write(messages("a", "bad", "b"))
        await sink.write(messages("c", first_offset=3))
    ((refusal),) = told.value.refusals
    assert refusal.index == 1
    assert refusal.reason.endswith(": out of line")
    assert payloads_of(broker.published) == [b"a", b"bad", b"b", b"c"]


async def test_a_broker_without_room_is_out(broker: ScriptedBroker) -> None:
    broker.answer = lambda publish: Puback(publish.packet_id, ReasonCode.QUOTA_EXCEEDED)
    async with sink_of(broker) as sink:
        await sink.check()
        with pytest.raises(SinkUnavailableError, match=r"quota exceeded \(0x97\)"):
            await sink.write(messages("a"))
        with pytest.raises(SinkUnavailableError):
            await sink.write(messages("a"))
        assert len(broker.connects) == 1
        broker.answer = lambda publish: Puback(publish.packet_id)
        await sink.check()
        await sink.write(messages("a"))


@pytest.mark.parametrize(
    "reason_code", [ReasonCode.SERVER_BUSY, ReasonCode.SERVER_SHUTTING_DOWN, ReasonCode.SESSION_TAKEN_OVER]
)
async def test_a_broker_that_says_goodbye_is_out(broker: ScriptedBroker, reason_code: ReasonCode) -> None:
    broker.answer = lambda _: Disconnect(reason_code)
    async with sink_of(broker) as sink:
        await sink.check()
        with pytest.raises(SinkUnavailableError, match=reason_code.name.lower().replace("_", " ")):
            await sink.write(messages("a"))


async def test_a_goodbye_over_a_message_refuses_the_batch_and_continues(broker: ScriptedBroker) -> None:
    def answer(publish: Publish) -> Packet:
        return Disconnect(ReasonCode.PACKET_TOO_LARGE) if publish.payload == b"bad" else Puback(publish.packet_id)

    broker.answer = answer
    async with sink_of(broker) as sink:
        await sink.check()
        with pytest.raises(BatchRefusedError, match=r"packet too large \(0x95\)"):
            await sink.write(messages("a", "bad", "b"))
        await sink.write(messages("a"))
        with pytest.raises(BatchRefusedError) as told:
            await sink.write(messages("bad", first_offset=1))
        assert told.value.index == 0
        await sink.write(messages("b", first_offset=2))
    assert payloads_of(broker.published)[-1] == b"b"


@pytest.mark.parametrize("version", Spoken)
async def test_a_message_over_which_the_broker_just_closes_is_found(broker: ScriptedBroker, version: Spoken) -> None:
    """Taken for outages, such a message would come back for ever."""

    def answer(publish: Publish) -> Packet | None:
        return None if publish.payload == b"bad" else Puback(publish.packet_id)

    broker.answer = answer
    batch = messages("a", "b", "bad", "c")
    outages = 0
    async with sink_of(broker, version=version) as sink:
        while True:
            try:
                await sink.check()
                await sink.write(batch)
            except SinkUnavailableError:
                outages += 1
                assert outages < 5
            except BatchRefusedError as error:
                assert error.index == 2
                break
        await sink.write(messages("c", first_offset=3))
    assert payloads_of(broker.published)[-1] == b"c"


@pytest.mark.parametrize(
    ("connack", "told"),
    [
        (Connack(reason_code=ReasonCode.BAD_USER_NAME_OR_PASSWORD), "another user and password"),
        (Connack(reason_code=ReasonCode.SERVER_UNAVAILABLE), r"server unavailable \(0x88\)"),
        (Connack(reason_code=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION), "set version"),
        (Connack(properties=Properties(maximum_qos=0)), "only QoS 0"),
        (Connack(properties=Properties(retain_available=0)), "set retain to false"),
    ],
)
async def test_a_broker_that_does_not_let_it_in_is_out(broker: ScriptedBroker, connack: Connack, told: str) -> None:
    broker.connack = connack
    async with sink_of(broker, retain=True, user="u", password="s3cret") as sink:
        with pytest.raises(SinkUnavailableError, match=told) as error:
            await sink.check()
        assert "s3cret" not in str(error.value)
        with pytest.raises(SinkUnavailableError, match="call check first"):
            await sink.write(messages("a"))


async def test_a_silent_connection_is_kept_alive_and_a_dead_one_noticed(
    broker: ScriptedBroker, mock_clock: MockClock
) -> None:
    async def time_passes() -> None:
        mock_clock.jump(0.25)
        await wait_all_tasks_blocked(0.005)

    broker.connack = Connack(properties=Properties(server_keep_alive=2))
    async with sink_of(broker) as sink:
        await sink.check()
        while broker.ping_count < 2:
            await time_passes()
        await sink.write(messages("a"))
        broker.answers_pings = False
        pinged = broker.ping_count
        while broker.ping_count == pinged:
            await time_passes()
        with pytest.raises(SinkUnavailableError, match=r"has not answered for 1 s"):
            while True:
                await sink.write(messages("b"))
                await time_passes()


async def test_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    authority, broker = trustme.CA(), ScriptedBroker()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    own = authority.issue_cert("bridge")
    own.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    own.private_key_pem.write_to_path(tmp_path / "key.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED

    async def serve(stream: trio.SocketStream) -> None:
        secure = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        try:
            await secure.do_handshake()
        except trio.BrokenResourceError:
            return
        await broker.serve(secure)  # type: ignore[arg-type]

    files = {name: str(tmp_path / f"{name[:-5]}.pem") for name in ("ca_file", "key_file")}
    async with trio.open_nursery() as tasks:
        listeners = await tasks.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        broker.port = listeners[0].socket.getsockname()[1]
        async with sink_of(broker, tls=True, certificate_file=str(tmp_path / "cert.pem"), **files) as sink:
            await sink.check()
            await sink.write(messages("a"))
        async with sink_of(broker, tls=True) as sink:
            with pytest.raises(SinkUnavailableError, match=r"(?i)certificate"):
                await sink.check()
        tasks.cancel_scope.cancel()
    assert payloads_of(broker.published) == [b"a"]


async def test_columns_that_rows_do_not_have(broker: ScriptedBroker) -> None:
    for settings in ({"topic": "{nothing}"}, {"payload": "nothing"}):
        with pytest.raises(ConfigurationError, match="a column nothing, but rows have the columns topic, payload"):
            async with sink_of(broker, **settings):
                pass


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"password": "a", "password_file": "b", "user": "c"}, "both given"),
        ({"password": "a"}, "without a user"),
        ({"ca_file": "a"}, "tls is false"),
        ({"tls": True, "key_file": "a"}, "belong together"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], told: str) -> None:
    (problem,) = check(MqttSettings("broker:1883", **settings))
    assert told in problem
