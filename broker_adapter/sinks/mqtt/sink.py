"""The sink ``mqtt``: rows become messages on one connection; `check` opens a new one when it is lost."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from broker_adapter.background_tasks import background_tasks
from broker_adapter.mqtt_codec.packets import Connect
from broker_adapter.sinks.batch import Batch, Row
from broker_adapter.sinks.errors import Refusal, SinkUnavailableError
from broker_adapter.sinks.json_form import encode_row, encode_value
from broker_adapter.sinks.mqtt.connection import BrokerConnection, Peer, dial
from broker_adapter.sinks.mqtt.delivery import Delivery, Message
from broker_adapter.sinks.mqtt.reasons import PoisonMessageDetector
from broker_adapter.sinks.mqtt.settings import MqttSettings
from broker_adapter.sinks.mqtt.topic_template import TopicTemplate
from broker_adapter.sinks.setting_kinds import read_secret
from broker_adapter.sinks.sink import Sink, SinkContext
from journal.net.address import parse_address
from journal.settings.values import ConfigurationError


@asynccontextmanager
async def open_mqtt_sink(settings: MqttSettings, context: SinkContext) -> AsyncIterator[Sink]:
    """Open the sink; nothing is connected yet.

    Raises:
        ConfigurationError: A column is named that rows do not have, or a certificate file cannot be used.
    """
    template = TopicTemplate(settings.topic)
    for name in (*template.columns, *filter(None, (settings.payload,))):
        if name not in context.columns:
            raise ConfigurationError(
                f"the sink mqtt needs a column {name}, but rows have the columns {', '.join(context.columns)}; name "
                'one of these, or set payload = "" for a JSON object of all columns'
            )
    parsed = parse_address(settings.address)
    assert parsed is not None  # the type of the setting ensures it
    peer = Peer(settings.address, *parsed, _tls(settings) if settings.tls else None)
    async with background_tasks() as tasks:
        sink = MqttSink(settings, context, peer, template, tasks)
        try:
            yield sink
        finally:
            await sink.aclose()


class MqttSink(Sink):
    """Publishes rows at another broker.

    Args:
        peer: The broker.
        template: Template of topics.
        tasks: Nursery of connections.
    """

    def __init__(
        self, settings: MqttSettings, context: SinkContext, peer: Peer, template: TopicTemplate, tasks: trio.Nursery
    ) -> None:
        self.max_in_flight = settings.max_in_flight
        self._settings = settings
        self._client_id = settings.client_id or f"journal-{context.queue_id}"
        self._peer = peer
        self._template = template
        self._tasks = tasks
        self._connection: BrokerConnection | None = None
        # Waiting tasks get the lock in order, so batches keep their order.
        self._starting = trio.Lock()
        self._detector = PoisonMessageDetector()

    async def check(self) -> None:
        async with self._starting:
            connection = self._connection
            if connection is None or connection.lost is not None:
                await self._connect()
                return
            with trio.move_on_after(self._settings.timeout_s) as waiting:
                await connection.ping()
            if waiting.cancelled_caught:
                connection.lose(f"the broker did not answer within timeout_s = {self._settings.timeout_s}")
            if connection.lost is not None:
                raise connection.lost

    async def write(self, batch: Batch) -> None:
        delivery = self._delivery(batch)
        connection = await self._deliver(delivery)
        if connection.is_lost_over_message and delivery.failed_with(connection.lost):
            # The message that caused the end was in the batch before.
            delivery = self._delivery(batch)
            await self._deliver(delivery)
        delivery.raise_unless_taken(self._peer.address)

    async def _deliver(self, delivery: Delivery) -> BrokerConnection:
        """Send a batch and wait until it is finished, successfully or not; return the connection that was used."""
        async with self._starting:
            if self._connection is not None and self._connection.is_lost_over_message:
                await self._connect()
            if self._connection is None:
                raise SinkUnavailableError(f"{self._peer.address} is not connected; call check first")
            connection = self._connection
            connection.deliver_nowait(delivery)
        with trio.move_on_after(self._settings.timeout_s) as waiting:
            try:
                await delivery.finished.wait()
            except trio.Cancelled:
                if waiting.cancel_called:
                    connection.lose(f"the broker did not confirm within timeout_s = {self._settings.timeout_s}")
                else:
                    connection.lose("the connection was given up with messages in progress")
                raise
        return connection

    async def aclose(self) -> None:
        if self._connection is not None:
            self._connection.lose("the sink is closed")
            self._connection = None
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _connect(self) -> None:
        settings = self._settings
        password = read_secret("password", settings.password, settings.password_file)
        connect = Connect(
            self._client_id,
            # Neither side keeps a session: unconfirmed messages are written again from the queue. Only the client
            # identifier is kept, so that the broker closes an old connection that it still counts as alive.
            clean_start=True,
            keep_alive_s=settings.keep_alive_s,
            username=settings.user or None,
            password=password.encode() if password else None,
            version=settings.version.version,
        )
        try:
            with trio.fail_after(settings.timeout_s):
                self._connection = await dial(self._peer, connect, self._detector, retain=settings.retain)
        except trio.TooSlowError as error:
            raise SinkUnavailableError(
                f"{self._peer.address} did not answer within timeout_s = {settings.timeout_s}"
            ) from error
        except ValueError as error:
            # Error of the codec, whose text has lengths and no values.
            raise SinkUnavailableError(f"client_id, user or password for {self._peer.address}: {error}") from error
        self._tasks.start_soon(self._connection.run)

    def _delivery(self, batch: Batch) -> Delivery:
        messages, refusals = [], []
        for index, row in enumerate(batch.rows):
            try:
                messages.append(Message(index, batch.offsets[index], self._template.topic(row), self._payload(row)))
            except ValueError as error:
                refusals.append(Refusal(index, str(error)))
        return Delivery(messages, refusals)

    def _payload(self, row: Row) -> bytes:
        if not self._settings.payload:
            return encode_row(row)
        value = row[self._settings.payload]
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode()
        return b"" if value is None else encode_value(value)


def _tls(settings: MqttSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
    except ssl.SSLError as error:
        raise ConfigurationError(f"ca_file = {settings.ca_file!r} holds no certificates: {error.reason}") from error
    except OSError as error:
        raise ConfigurationError(f"ca_file = {settings.ca_file!r} cannot be read: {error.strerror}") from error
    if settings.certificate_file:
        files = f"certificate_file = {settings.certificate_file!r} and key_file = {settings.key_file!r}"
        try:
            context.load_cert_chain(settings.certificate_file, settings.key_file, password=_no_passphrase)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigurationError(f"{files} are not a certificate and its key: {error}") from error
        except OSError as error:
            raise ConfigurationError(f"{files} cannot be read: {error.strerror}") from error
    return context


def _no_passphrase() -> str:
    # Without this the library would prompt on the terminal.
    raise ValueError("the key has a passphrase; store it without one, in a file that only the sink can read")
