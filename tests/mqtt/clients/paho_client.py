"""paho-mqtt in its own thread; a test waits for what it received. Everything that waits has an end."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import attrs
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.patience import PATIENCE_S

QUIET_S = 0.3

V311 = MQTTProtocolVersion.MQTTv311
V5 = MQTTProtocolVersion.MQTTv5

T = TypeVar("T")
_names = itertools.count()


def fresh(word: str) -> str:
    """A name that no other test uses, not even of another run against the same broker."""
    return f"{word}-{os.getpid()}-{next(_names)}"


@attrs.frozen
class Will:
    """What the broker publishes for a client that is gone."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    delay_s: int = 0


@attrs.frozen
class Received:
    """A message as it came. Properties are under paho's names."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: dict[str, Any]


class PahoClient:
    """One client.

    Args:
        client_id: A fresh one if it is empty; None leaves it to the broker.
        version: `V311` or `V5`.
        durable: Its session outlives the connection (for MQTT 5 by an hour).
        will: What is published when it is gone without a word.
        transport: ``tcp`` or ``websockets``.
    """

    def __init__(
        self,
        port: int,
        client_id: str | None = "",
        *,
        version: MQTTProtocolVersion = V5,
        durable: bool = False,
        will: Will | None = None,
        transport: Any = "tcp",
        connect_properties: Sequence[tuple[str, Any]] = (),
    ) -> None:
        self.client_id = "" if client_id is None else client_id or fresh("paho")
        self.messages: list[Received] = []
        self.session_present = False
        self.connack_properties: Properties | None = None
        self.disconnect_reason: Any = None
        self._version = version
        self._port = port
        self._connect_properties = tuple(connect_properties) + ((("SessionExpiryInterval", 3600),) if durable else ())
        self._changed = threading.Condition()
        self._connected = False
        self._refused: Any = None
        self._subscribed: dict[int, list[int]] = {}
        self._published: dict[int, Any] = {}
        options: dict[str, Any] = {} if version == V5 else {"clean_session": not durable}
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            self.client_id,
            protocol=version,
            transport=transport,
            reconnect_on_failure=False,
            **options,
        )
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        self._client.on_subscribe = self._on_subscribe
        self._client.on_unsubscribe = self._on_unsubscribe
        self._client.on_publish = self._on_publish
        if will is not None:
            delay = properties(PacketTypes.WILLMESSAGE, WillDelayInterval=will.delay_s) if will.delay_s else None
            self._client.will_set(will.topic, will.payload, will.qos, will.retain, delay)
        self._clean_start = not durable

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disconnect()

    def connect(self, port: int | None = None) -> None:
        """Connect, to another broker if a port is given, and wait for the broker's answer."""
        options: dict[str, Any] = {}
        if self._version == V5:
            options = {"clean_start": self._clean_start}
            if self._connect_properties:
                options["properties"] = properties(PacketTypes.CONNECT, **dict(self._connect_properties))
        self.disconnect_reason = None
        self._refused = None
        self._client.connect("127.0.0.1", port or self._port, keepalive=60, **options)
        self._client.loop_start()
        self._wait(lambda: self._connected or self._refused is not None, "no CONNACK")
        assert self._refused is None, f"refused: {self._refused}"

    def disconnect(self) -> None:
        """Take leave properly; nothing happens if it is not connected."""
        self._client.disconnect()
        self._stop_thread()
        self._connected = False

    def vanish(self) -> None:
        """Lose the connection without a word."""
        sock = self._client.socket()
        assert sock is not None
        # paho's own thread sees the end of the stream and closes.
        _plain(sock).shutdown(socket.SHUT_RDWR)
        self._wait(lambda: not self._connected, "the end of the connection was not seen")
        self._stop_thread()

    def wait_disconnected(self) -> Any:
        """Wait until the broker ends the connection; its reason."""
        self._wait(lambda: not self._connected, "the broker did not close the connection")
        self._stop_thread()
        return self.disconnect_reason

    def subscribe(
        self,
        topic_filter: str,
        qos: int = 1,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        subscription_id: int = 0,
        user_properties: Sequence[tuple[str, str]] = (),
    ) -> int:
        """Subscribe and wait for the SUBACK; its reason code."""
        options: dict[str, Any] = {"qos": qos}
        if self._version == V5:
            options = {"options": SubscribeOptions(qos, no_local, retain_as_published, retain_handling)}
            given: dict[str, Any] = {}
            if subscription_id:
                given["SubscriptionIdentifier"] = subscription_id
            if user_properties:
                given["UserProperty"] = list(user_properties)
            options["properties"] = properties(PacketTypes.SUBSCRIBE, **given)
        _, packet_id = self._client.subscribe(topic_filter, **options)
        assert packet_id is not None
        self._wait(lambda: packet_id in self._subscribed, "no SUBACK")
        [code] = self._subscribed.pop(packet_id)
        return code

    def unsubscribe(self, topic_filter: str) -> None:
        """Unsubscribe and wait for the UNSUBACK."""
        _, packet_id = self._client.unsubscribe(topic_filter)
        assert packet_id is not None
        self._wait(lambda: packet_id in self._subscribed, "no UNSUBACK")
        del self._subscribed[packet_id]

    def publish(self, topic: str, payload: bytes | str, qos: int = 1, *, retain: bool = False, **given: Any) -> Any:
        """Publish and wait until it is acknowledged (QoS 0: sent); the reason code. ``given`` are MQTT 5 properties."""
        info = self.begin_publish(topic, payload, qos, retain=retain, **given)
        self._wait(lambda: info.mid in self._published, f"no acknowledgement of a publish to {topic}")
        return self._published.pop(info.mid)

    def begin_publish(
        self, topic: str, payload: bytes | str, qos: int = 1, *, retain: bool = False, **given: Any
    ) -> paho.MQTTMessageInfo:
        """Publish and do not wait."""
        found = properties(PacketTypes.PUBLISH, **given) if given else None
        return self._client.publish(topic, payload, qos, retain, found)

    def wait_messages(self, count: int) -> list[Received]:
        """Wait for so many messages in all; all that have come."""
        self._wait(lambda: len(self.messages) >= count, lambda: f"{len(self.messages)} of {count} messages came")
        return list(self.messages)

    def wait_payloads(self, count: int) -> list[bytes]:
        """The same, payloads alone."""
        return [message.payload for message in self.wait_messages(count)]

    def wait_quiet(self) -> list[bytes]:
        """Wait for a moment in which nothing comes; all payloads. For what must *not* come there is no condition."""
        while True:
            before = len(self.messages)
            time.sleep(QUIET_S)
            if len(self.messages) == before:
                return [message.payload for message in self.messages]

    def wait_payload(self, payload: bytes, *, timeout_s: float = PATIENCE_S) -> None:
        """Wait until this has come."""
        self._wait(
            lambda: payload in [message.payload for message in self.messages],
            lambda: f"{payload!r} did not come, but {[message.payload for message in self.messages]}",
            timeout_s,
        )

    def _stop_thread(self) -> None:
        self._client.loop_stop()
        # A new thread would begin with a new pair of sockets and leave this one open.
        self._client._reset_sockets(sockpair_only=True)

    def _wait(
        self, is_so: Callable[[], bool], otherwise: str | Callable[[], str], timeout_s: float = PATIENCE_S
    ) -> None:
        with self._changed:
            if not self._changed.wait_for(is_so, timeout_s):
                said = otherwise if isinstance(otherwise, str) else otherwise()
                raise AssertionError(f"{self.client_id}: {said}")

    def _note(self, change: Callable[[], T]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()

    def _on_connect(self, _client: Any, _data: Any, flags: Any, reason: Any, given: Properties | None) -> None:
        def change() -> None:
            self.session_present = flags.session_present
            self.connack_properties = given
            if reason.is_failure:
                self._refused = reason
            else:
                self._connected = True

        self._note(change)

    def _on_disconnect(self, _client: Any, _data: Any, _flags: Any, reason: Any, _given: Any) -> None:
        def change() -> None:
            self._connected = False
            self.disconnect_reason = reason

        self._note(change)

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        given = (
            {name: value for name, value in vars(message.properties).items() if name[0].isupper()}
            if message.properties
            else {}
        )
        received = Received(message.topic, bytes(message.payload), message.qos, message.retain, given)
        self._note(lambda: self.messages.append(received))

    def _on_subscribe(self, _client: Any, _data: Any, packet_id: int, reasons: Any, _given: Any) -> None:
        self._note(lambda: self._subscribed.__setitem__(packet_id, [reason.value for reason in reasons]))

    def _on_unsubscribe(self, _client: Any, _data: Any, packet_id: int, _reasons: Any, _given: Any) -> None:
        self._note(lambda: self._subscribed.__setitem__(packet_id, []))

    def _on_publish(self, _client: Any, _data: Any, packet_id: int, reason: Any, _given: Any) -> None:
        self._note(lambda: self._published.__setitem__(packet_id, reason))


def properties(packet_type: int, **given: Any) -> Properties:
    """Properties of MQTT 5 by paho's names."""
    found = Properties(packet_type)  # type: ignore[no-untyped-call]
    for name, value in given.items():
        setattr(found, name, value)
    return found


def _plain(sock: Any) -> socket.socket:
    """The TCP socket, also below a WebSocket."""
    inner = getattr(sock, "_socket", sock)
    assert isinstance(inner, socket.socket)
    return inner
