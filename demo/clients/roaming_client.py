"""A paho-mqtt client with several brokers: when it loses one it connects to the next, with the same session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

V311: Final = MQTTProtocolVersion.MQTTv311
V5: Final = MQTTProtocolVersion.MQTTv5

_SESSION_EXPIRY_S: Final = 3600
_KEEP_ALIVE_S: Final = 30
_IN_FLIGHT: Final = 1000
_RECONNECT_DELAY_S: Final = 1


class RoamingClient:
    """One client; its callbacks run in paho's thread.

    Attributes:
        losses: How often it lost its connection.
        port: Port of its present broker, or of the one that it tries.

    Args:
        client_id: Its client identifier.
        ports: Ports of the brokers, in the order in which it tries them.
        version: `V311` or `V5`.
        durable: Its session outlives the connection.
        on_message: Called with topic and payload of each message.
        on_acknowledged: Called with the packet identifier of each publish that is acknowledged.
    """

    def __init__(
        self,
        client_id: str,
        ports: Sequence[int],
        version: MQTTProtocolVersion,
        *,
        durable: bool = True,
        on_message: Callable[[str, bytes], None] = lambda topic, payload: None,
        on_acknowledged: Callable[[int], None] = lambda packet_id: None,
    ) -> None:
        self.client_id = client_id
        self.losses = 0
        self.port = 0
        self._ports = list(ports)
        self._turn = 0
        self._version = version
        self._durable = durable
        self._on_message = on_message
        self._on_acknowledged = on_acknowledged
        self._subscription: tuple[str, int] | None = None
        self._granted = threading.Event()
        self._connected = threading.Event()
        self._is_leaving = False
        options: dict[str, Any] = {"clean_session": not durable} if version == V311 else {}
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=version, **options)
        self._client.max_inflight_messages_set(_IN_FLIGHT)
        self._client.max_queued_messages_set(0)
        self._client.reconnect_delay_set(_RECONNECT_DELAY_S, _RECONNECT_DELAY_S)
        self._client.on_connect = self._connect_ended
        self._client.on_connect_fail = self._connect_failed
        self._client.on_disconnect = self._disconnected
        self._client.on_message = self._message_came
        self._client.on_publish = self._publish_ended
        self._client.on_subscribe = self._subscribed

    @property
    def is_connected(self) -> bool:
        """Whether a broker has accepted it."""
        return self._connected.is_set()

    @property
    def is_subscribed(self) -> bool:
        """Whether its subscription was granted."""
        return self._granted.is_set()

    def connect(self) -> None:
        """Connect, in the background, and stay connected."""
        self._is_leaving = False
        self._aim()
        self._client.loop_start()

    def leave(self) -> None:
        """Disconnect; a durable session stays with the brokers."""
        self._is_leaving = True
        self._client.disconnect()
        self._client.loop_stop()
        self._connected.clear()

    def move_on(self) -> None:
        """Try the next broker first from now on."""
        self._turn += 1

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe with every new session; to be called before `connect`."""
        self._subscription = (topic_filter, qos)

    def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> int:
        """Queue a message; it is sent when there is a connection. Returns its packet identifier."""
        return self._client.publish(topic, payload, qos, retain).mid

    def _aim(self) -> None:
        """Set the address of the next attempt to the next broker."""
        options: dict[str, Any] = {}
        if self._version == V5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = _SESSION_EXPIRY_S if self._durable else 0
            options = {"clean_start": not self._durable, "properties": properties}
        self.port = self._ports[self._turn % len(self._ports)]
        self._client.connect_async("127.0.0.1", self.port, keepalive=_KEEP_ALIVE_S, **options)

    def _connect_ended(self, _client: Any, _data: Any, flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            return
        if self._subscription is not None and not flags.session_present:
            self._client.subscribe(*self._subscription)
        self._connected.set()

    def _connect_failed(self, _client: Any, _data: Any) -> None:
        self._turn += 1
        self._aim()

    def _disconnected(self, _client: Any, _data: Any, _flags: Any, _reason: Any, _properties: Any) -> None:
        self._connected.clear()
        if not self._is_leaving:
            self.losses += 1
            self._turn += 1
            self._aim()

    def _message_came(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self._on_message(message.topic, bytes(message.payload))

    def _publish_ended(self, _client: Any, _data: Any, packet_id: int, _reason: Any, _properties: Any) -> None:
        self._on_acknowledged(packet_id)

    def _subscribed(self, _client: Any, _data: Any, _packet_id: int, reasons: Any, _properties: Any) -> None:
        if not any(reason.is_failure for reason in reasons):
            self._granted.set()
