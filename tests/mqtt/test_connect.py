"""CONNECT: which clients are accepted, with which limits, and the reasons that the others get."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from broker_adapter.mqtt.access.permissions import Principal
from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt.session import Sessions, StoreUnavailableError
from broker_adapter.mqtt_codec import Packet, Properties, ReasonCode, Version, encode
from broker_adapter.mqtt_codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from tests.mqtt.serving import serving

BOTH = [Version.V311, Version.V5]


class Doorkeeper:
    """Lets in who knows the password, and them not everywhere."""

    changes = 0

    async def authenticate(
        self, client_id: str, username: str | None, password: bytes | None, peer: str, certificate_name: str = ""
    ) -> Principal | None:
        await trio.lowlevel.checkpoint()
        return Principal(client_id, username or "") if password == b"sesame" else None

    def may_use_client_id(self, principal: Principal) -> bool:
        return not principal.client_id.startswith("reserved-")

    def may_open_session(self, principal: Principal, user: str) -> bool:
        return True

    def is_admitted(self, principal: Principal) -> bool:
        return True

    def may_publish_will(self, principal: Principal, topic: str) -> bool:
        return True

    def may_publish(self, principal: Principal, topic: str) -> bool:
        return not topic.startswith("secret/")

    def may_subscribe(self, principal: Principal, topic_filter: str) -> bool:
        return not topic_filter.startswith("secret/")

    def may_subscribe_except(self, principal: Principal, topic_filter: str) -> bool:
        return not topic_filter.startswith("secret/")


@pytest.mark.parametrize("version", BOTH)
async def test_a_client_is_let_in(version: Version) -> None:
    async with serving() as served:
        client = served.dial(version)
        answer = await client.connect("client")
        assert (answer.session_present, answer.reason_code) == (False, ReasonCode.SUCCESS)
        await client.silent()
        assert served.broker.statistics.clients_connected == 1
        await client.leave()


@pytest.mark.parametrize("version", BOTH)
async def test_packets_may_follow_connect_without_waiting_for_its_answer(version: Version) -> None:
    async with serving() as served:
        client = served.dial(version)
        packets: list[Packet] = [
            Connect("client", version=version),
            Subscribe(1, (SubscriptionRequest("a", 0),)),
            Pingreq(),
        ]
        await client.send(*packets)
        kinds = {type(await client.receive()) for _ in packets}
        assert {Connack, Suback} < kinds


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize(
    "first",
    [Pingreq(), Publish("a"), Subscribe(1, (SubscriptionRequest("a"),)), Disconnect()],
    ids=lambda p: type(p).__name__,
)
async def test_a_client_that_does_not_begin_with_connect_is_disconnected(version: Version, first: Packet) -> None:
    async with serving() as served:
        client = served.dial(version)
        await client.send(first)
        await client.closed()


async def test_a_second_connect_ends_the_connection() -> None:
    async with serving() as served:
        client = await served.client()
        await client.send(Connect("client"))
        await client.refused(ReasonCode.PROTOCOL_ERROR)


@pytest.mark.parametrize("version", BOTH)
async def test_a_client_without_an_identifier_gets_one(version: Version) -> None:
    async with serving() as served:
        one, other = served.dial(version), served.dial(version)
        answers = [await one.connect(""), await other.connect("")]
        names = {answer.properties.assigned_client_identifier for answer in answers}
        assert len(names) == (2 if version is Version.V5 else 1)
        await one.silent()
        await other.silent()


async def test_a_session_that_is_kept_needs_an_identifier_in_mqtt_3() -> None:
    async with serving() as served:
        client = served.dial(Version.V311)
        answer = await client.connect("", clean_start=False)
        assert answer.reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        await client.closed()
        # MQTT 5 tells the client what it is called, so it can come back.
        assert (await served.dial().connect("", clean_start=False)).reason_code == ReasonCode.SUCCESS


@pytest.mark.parametrize(
    ("options", "reason_code"),
    [
        ({"properties": Properties(authentication_method="SCRAM")}, ReasonCode.BAD_AUTHENTICATION_METHOD),
        ({"username": "ali", "password": b"wrong"}, ReasonCode.BAD_USER_NAME_OR_PASSWORD),
        ({}, ReasonCode.BAD_USER_NAME_OR_PASSWORD),
        ({"password": b"sesame", "client_id": "x" * 300}, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID),
        ({"password": b"sesame", "will": Will("secret/a")}, ReasonCode.NOT_AUTHORIZED),
        ({"password": b"sesame", "will": Will("$SYS/a")}, ReasonCode.NOT_AUTHORIZED),
        ({"password": b"sesame", "will": Will("$delayed/5/a")}, ReasonCode.TOPIC_NAME_INVALID),
    ],
)
async def test_a_refused_client_gets_the_reason(options: dict[str, Any], reason_code: ReasonCode) -> None:
    async with serving(access=Doorkeeper(), limits=Limits(max_client_id_bytes=255)) as served:
        client = served.dial()
        assert (await client.connect(**options)).reason_code == reason_code
        await client.closed()
        assert served.broker.statistics.clients_connected == 0


async def test_mqtt_3_has_return_codes_for_some_refusals() -> None:
    async with serving(access=Doorkeeper()) as served:
        client = served.dial(Version.V311)
        answer = await client.connect(username="ali", password=b"wrong")
        assert answer.reason_code == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        await client.closed()
        client = served.dial(Version.V311)
        await client.send(Connect("c", username="ali", password=b"sesame", will=Will("$SYS/a"), version=Version.V311))
        await client.closed()


@pytest.mark.parametrize("version", BOTH)
async def test_a_store_that_does_not_answer_is_reported(version: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unavailable(*_args: Any, **_options: Any) -> None:
        await trio.lowlevel.checkpoint()
        raise StoreUnavailableError("no answer")

    async with serving() as served:
        monkeypatch.setattr(Sessions, "open", unavailable)
        client = served.dial(version)
        assert (await client.connect()).reason_code == ReasonCode.SERVER_UNAVAILABLE
        await client.closed()


@pytest.mark.parametrize(
    ("asked", "keep_alive_s", "told"),
    [
        (Properties(), 30, Properties()),
        (Properties(), 0, Properties(server_keep_alive=60)),
        (Properties(), 61, Properties(server_keep_alive=60)),
        (Properties(session_expiry_interval=100), 30, Properties()),
        (Properties(session_expiry_interval=5000), 30, Properties(session_expiry_interval=1000)),
        (Properties(session_expiry_interval=0xFFFF_FFFF), 30, Properties(session_expiry_interval=1000)),
        (Properties(request_response_information=1), 30, Properties(response_information="response/client/")),
    ],
)
async def test_connack_has_the_limits(asked: Properties, keep_alive_s: int, told: Properties) -> None:
    limits = Limits(
        max_keep_alive_s=60, max_session_expiry_s=1000, receive_maximum=7, topic_alias_maximum=3, max_packet_bytes=5000
    )
    async with serving(limits=limits) as served:
        answer = await served.dial().connect(keep_alive_s=keep_alive_s, properties=asked)
        assert answer.properties == Properties(
            receive_maximum=7,
            topic_alias_maximum=3,
            maximum_packet_size=5000,
            server_keep_alive=told.server_keep_alive,
            session_expiry_interval=told.session_expiry_interval,
            response_information=told.response_information,
        )


@pytest.mark.parametrize("version", BOTH)
async def test_the_newer_connection_of_a_client_takes_over(version: Version) -> None:
    async with serving() as served:
        old = await served.client("same", version)
        new = await served.client("same", version)
        await old.refused(ReasonCode.SESSION_TAKEN_OVER)
        await new.silent()
        assert served.broker.statistics.clients_connected == 1


async def test_a_session_is_present_when_it_was_kept() -> None:
    async with serving() as served:
        kept = Properties(session_expiry_interval=100)
        client = await served.client("c", properties=kept)
        await client.leave()
        client = served.dial()
        assert (await client.connect("c", clean_start=False, properties=kept)).session_present
        await client.leave()
        client = served.dial()
        assert not (await client.connect("c", clean_start=True)).session_present
        await client.leave()
        client = served.dial()
        assert not (await client.connect("c", clean_start=False)).session_present


async def test_silence_before_connect_is_ended(autojump_clock: MockClock) -> None:
    async with serving(limits=Limits(connect_timeout_s=10)) as served:
        client = served.dial()
        began_s = trio.current_time()
        with trio.fail_after(20):
            assert await client.stream.receive_some() == b""
        assert 10 <= trio.current_time() - began_s < 13


@pytest.mark.parametrize("version", BOTH)
async def test_a_client_that_is_silent_for_too_long_is_ended(version: Version, autojump_clock: MockClock) -> None:
    async with serving() as served:
        client = await served.client("c", version, keep_alive_s=20)
        for _ in range(3):
            await trio.sleep(25)
            await client.silent()
        began_s = trio.current_time()
        with trio.fail_after(40):
            data = await client.stream.receive_some()
        assert 30 <= trio.current_time() - began_s < 33
        last_words = encode(Disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT), version) if version is Version.V5 else b""
        assert data == last_words


async def test_a_client_that_said_no_keep_alive_may_be_silent(autojump_clock: MockClock) -> None:
    async with serving() as served:
        client = await served.client(keep_alive_s=0)
        await trio.sleep(1_000)
        await client.silent()


async def test_when_the_broker_stops_clients_are_notified() -> None:
    async with serving() as served:
        client = await served.client()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.broker.stop)
            await client.refused(ReasonCode.SERVER_SHUTTING_DOWN)
        await served.dial().closed()
