"""One client's connection, from its first byte to its last: received bytes, keep-alive, and how the connection ends.

Packets are handled in `packet_handler`; CONNECT is handled in `handshake`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import attrs
import structlog
import trio

from broker_adapter.errors import ServerRestoredError
from broker_adapter.mqtt.access.permissions import host_of
from broker_adapter.mqtt.access.quotas import Account, Limit
from broker_adapter.mqtt.connection.ending import LOST, TAKEN_OVER, UNSETTLED, Ending, close_stream, count_end
from broker_adapter.mqtt.connection.handshake import REFUSALS, ConnectRefusedError
from broker_adapter.mqtt.connection.left_clients import client_may_have_left
from broker_adapter.mqtt.connection.misdirected import misdirected
from broker_adapter.mqtt.connection.packet_handler import PacketHandler, decoded
from broker_adapter.mqtt.connection.services import Owner, Services
from broker_adapter.mqtt.connection.unaccepted_memory import UnacceptedMemory
from broker_adapter.mqtt.model.statistics import EndReason
from broker_adapter.mqtt.session import Session, SessionTakenOverError
from broker_adapter.mqtt.transport.output import StreamCarrier
from broker_adapter.mqtt.transport.resting import Wakes
from broker_adapter.mqtt.transport.streams import PEER_GONE, LimitsUnaccepted
from broker_adapter.mqtt_codec import Decoder, MqttProtocolError, Packet, ReasonCode, Version, encode
from broker_adapter.mqtt_codec.errors import ProtocolViolationError
from broker_adapter.mqtt_codec.packets import Connack, Connect, Disconnect, Publish
from broker_adapter.mqtt_codec.text import shortened
from journal.net.output import Output
from journal.net.protocol_sniffing import ENOUGH_BYTES

_RECEIVED_AT_ONCE: Final = 64 * 1024
_KEEP_ALIVE_FACTOR: Final = 1.5
_FINAL_FLUSH_S: Final = 1.0
_GRACE_S: Final = 5.0
_RESTS_AFTER_S: Final = 1.0
_QUICK_S: Final = 0.05
_MANY_QUICK: Final = 8

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


@attrs.define(kw_only=True, eq=False, repr=False, weakref_slot=False)
class Connection:
    """State of one connection.

    Args:
        stream: To the client; it is closed at the end of the connection.
        services: The parts of the broker that a connection uses.
        peer: Address of the client, for the log.
        transport: Name of the transport, for the log.
        certificate_name: The name in the client's certificate; empty without one.
        owner: The broker.
        may_rest: Whether `run` may return before the end.
    """

    _stream: trio.abc.Stream
    _services: Services
    peer: str
    _transport: str
    _owner: Owner[Connection]
    _certificate_name: str = ""
    _may_rest: bool = False
    _decoder: Decoder = attrs.field(init=False)
    _output: Output = attrs.field(init=False)
    _start: Callable[[Callable[[], Awaitable[None]]], None] = attrs.field(init=False)
    _tasks: set[trio.CancelScope] | None = attrs.field(init=False, default=None)  # made for the first task
    _receiving: trio.CancelScope | None = attrs.field(init=False, default=None)
    _waker: Wakes | None = attrs.field(init=False, default=None)  # while it rests
    _ending: Ending | None = attrs.field(init=False, default=None)
    _handler: PacketHandler | None = attrs.field(init=False, default=None)
    _unaccepted: UnacceptedMemory = attrs.field(init=False)
    _account: Account | None = attrs.field(init=False, default=None)
    _leave_quota: Callable[[], None] | None = attrs.field(init=False, default=None)
    _version: Version = attrs.field(init=False, default=Version.V311)
    _claimed_id: str = attrs.field(init=False, default="")
    _heard_at_s: float = attrs.field(init=False, factory=trio.current_time)
    _silence_s: float = attrs.field(init=False)
    # While nothing is read from the client, its silence must not end the connection.
    _is_reading: bool = attrs.field(init=False, default=True)
    _is_first: bool = attrs.field(init=False, default=True)
    _is_waiting: bool = attrs.field(init=False, default=False)
    _quick_count: int = attrs.field(init=False, default=0)
    _wait_s: float = attrs.field(init=False, default=0.0)

    def __attrs_post_init__(self) -> None:
        limits = self._services.limits
        self._decoder = Decoder(
            of="client", max_packet_bytes=limits.max_packet_bytes, max_connect_bytes=limits.max_connect_bytes
        )
        self._start = self.start
        self._unaccepted = UnacceptedMemory(self._services.connect_budget)
        self._silence_s = limits.connect_timeout_s
        self._output = Output(
            StreamCarrier(self._stream, self._services.statistics),
            self._start,
            limit_bytes=limits.max_output_bytes,
            stalled_after_s=limits.stalled_after_s,
            on_broken=self._peer_closed,
            on_room=self.pump,
        )

    @property
    def session(self) -> Session | None:
        """The client's session, once its CONNECT was accepted."""
        return None if self._handler is None else self._handler.session

    @property
    def client_id(self) -> str:
        """The client's identifier, empty before its CONNECT was accepted."""
        return "" if self._handler is None else self._handler.session.client_id

    @property
    def _named(self) -> dict[str, str]:
        """The client's identifier for the log; of a CONNECT that was refused, the one in it."""
        name = self.client_id or shortened(self._claimed_id)
        return {"client": name} if name else {}

    @property
    def is_blocked(self) -> bool:
        """Whether so many bytes wait to be sent to the client that no more messages are taken for it."""
        return not self._output.has_room

    # Life

    async def run(self) -> bool:
        """Serve the client until the connection ends, or rests: then it needs no task. Returns whether it rests."""
        rests = False
        try:
            await self._serve()
            rests = self._ending is None
            if rests:
                self._is_reading = True
            else:
                await self._finish()
        except trio.Cancelled:
            with trio.move_on_after(_GRACE_S, shield=True):
                self.end(ReasonCode.SERVER_SHUTTING_DOWN)
                assert self._ending is not None
                # The tasks that would settle anything are cancelled, too.
                self._ending = attrs.evolve(self._ending, settles=False)
                await self._finish()
            raise
        finally:
            if not rests:
                self._owner.ended(self)
        return rests

    def rests(self, until: Wakes) -> None:
        """It rests from now on, until the client sends something or the connection is to end."""
        self._waker = until

    def rest_if_silent(self, now_s: float) -> None:
        """Rest if the client has sent nothing for a while, so that the connection takes less memory."""
        is_silent = self._is_waiting and now_s - self._heard_at_s >= _RESTS_AFTER_S
        if is_silent and self._may_rest and self._receiving is not None:
            self._receiving.cancel()

    async def _serve(self) -> None:
        self._waker = None
        try:
            with trio.CancelScope() as self._receiving:
                if isinstance(self._stream, LimitsUnaccepted):
                    self._stream.watch_buffered(self._has_memory_for)
                await self._receive()
        except Exception as error:  # noqa: BLE001 it ends this connection, no other
            self._end_after(error)
        finally:
            self._receiving = None
            self._is_waiting = False
            self._unaccepted.release()

    def _end_after(self, error: Exception) -> None:
        if isinstance(error, MqttProtocolError):
            self._log("protocol error", error=str(error))
            self._end_with(error.answer, why="protocol")
        elif isinstance(error, ProtocolViolationError):
            self._log("protocol error", error=str(error))
            self.end(error.reason_code, why="protocol")
        elif isinstance(error, ConnectRefusedError):
            self._refuse(error)
        elif isinstance(error, PEER_GONE):
            self._peer_closed()
        else:
            self._failed(error)

    def _refuse(self, error: ConnectRefusedError) -> None:
        self._log("refused", error=str(error), reason=error.reason_code.name)
        self._services.statistics.refused[REFUSALS.get(error.reason_code, "protocol")] += 1
        self._end_with(encode(Connack(reason_code=error.reason_code), self._version) if error.is_answerable else b"")

    def end(self, reason_code: ReasonCode, ending: Ending = LOST, *, why: EndReason = "stopping") -> None:
        """End the connection; a client of MQTT 5 gets a DISCONNECT with the reason. Only the first call counts."""
        sends_disconnect = self._handler is not None and self._version is Version.V5
        self._end_with(encode(Disconnect(reason_code), self._version) if sends_disconnect else b"", ending, why)

    def fenced(self) -> None:
        """The session was taken over by another connection, at this or another broker."""
        self.end(ReasonCode.SESSION_TAKEN_OVER, TAKEN_OVER, why="taken_over")

    def follow_rights(self) -> None:
        """Users or rules have changed: end the connection, or the subscriptions that are not allowed any more."""
        handler = self._handler
        if handler is None or self._ending is not None:
            return
        if self._services.access.is_admitted(handler.principal):
            handler.follow_rights()
            return
        self._log("the user was removed or has another password", user=shortened(handler.principal.username))
        self.end(ReasonCode.NOT_AUTHORIZED, why="revoked")

    def follow_bans(self) -> None:
        """End the connection of a client that is banned now; its will is not published."""
        handler = self._handler
        if handler is None or self._ending is not None:
            return
        ban = self._services.bans.find(handler.principal, host_of(self.peer))
        if ban is not None:
            self._log("disconnected, as it is banned", ban=str(ban))
            self._services.audit.denied("disconnect", handler.principal, self.peer, str(ban), "banned")
            self.end(ReasonCode.ADMINISTRATIVE_ACTION, Ending(publish_will=False), why="banned")

    def kicked(self, *, end_session: bool) -> None:
        """An administrator wants the connection to end, and with it the session or not."""
        ending = Ending(expiry_interval_s=0 if end_session else None)
        self._log("disconnected by an administrator", end_session=end_session)
        self.end(ReasonCode.ADMINISTRATIVE_ACTION, ending, why="kicked")

    def unanswered(self) -> None:
        """Some publishes of the client will never be answered: it has to send them again."""
        self.end(ReasonCode.SERVER_BUSY, UNSETTLED, why="unanswered")

    def _peer_closed(self) -> None:
        self._end_with(b"", why="stalled" if self._output.stalled_bytes else None)

    def _failed(self, error: Exception) -> None:
        """An error in the broker itself."""
        log.error("connection failed", **self._named, peer=self.peer, exc_info=error)
        self.end(ReasonCode.UNSPECIFIED_ERROR, UNSETTLED, why="fault")

    def _end_with(self, final_bytes: bytes, ending: Ending = LOST, why: EndReason | None = None) -> None:
        if self._ending is not None:
            return
        self._ending = attrs.evolve(ending, last_bytes=final_bytes) if final_bytes else ending
        count_end(self._services.statistics, why, is_accepted=self._handler is not None)
        if self._handler is not None:
            self._handler.stop()
            self._services.statistics.client_disconnected()
        if self._receiving is not None:
            self._receiving.cancel()
        elif self._waker is not None:
            self._waker.wake()

    async def _finish(self) -> None:
        """Wait for what is under way, and release all that the connection holds."""
        ending, handler = self._ending, self._handler
        assert ending is not None
        if handler is not None:
            if ending.settles:
                with trio.move_on_after(self._services.limits.settle_timeout_s):
                    await handler.settle()
            handler.close()
        if ending.last_bytes:
            self._services.statistics.packets_sent += 1
        self._output.end(ending.last_bytes)
        with trio.move_on_after(_FINAL_FLUSH_S):
            await self._output.wait_drained()
        for scope in self._tasks or ():
            scope.cancel()
        # Closing may take long if the peer is slow; releasing its session must not wait for that.
        if self._leave_quota is not None:
            self._leave_quota()
        closed = trio.Event()
        self._services.tasks.start_soon(close_stream, self._stream, closed)
        if handler is not None:
            await self._services.sessions.close(
                handler.session, publish_will=ending.publish_will, expiry_interval_s=ending.expiry_interval_s
            )
        await closed.wait()

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task; it is cancelled when the connection ends, and the connection ends if the task fails."""
        scope = trio.CancelScope()
        if self._tasks is None:
            self._tasks = set()
        self._tasks.add(scope)
        self._services.tasks.start_soon(self._run_task, scope, work)

    async def _run_task(self, scope: trio.CancelScope, work: Callable[[], Awaitable[None]]) -> None:
        try:
            with scope:
                await work()
        except SessionTakenOverError:
            self.fenced()
        except ServerRestoredError:
            # The broker ends for this: the client asks the next one.
            self.unanswered()
        except ProtocolViolationError as error:
            self._log("protocol error", error=str(error))
            self.end(error.reason_code, why="protocol")
        except Exception as error:  # noqa: BLE001 it ends this connection, no other
            self._failed(error)
        finally:
            assert self._tasks is not None
            self._tasks.discard(scope)
            if not self._tasks:
                self._tasks = None

    # Called by the broker for every connection

    def check_silence(self, now_s: float) -> None:
        """End the connection if nothing was received from the client for too long."""
        if self._is_reading and now_s - self._heard_at_s > self._silence_s:
            self._log("silent for too long", limit_s=self._silence_s)
            self.end(ReasonCode.KEEP_ALIVE_TIMEOUT, why="keep_alive")

    def check_login(self, time_s: float) -> None:
        """End the connection if the login of its client has expired.

        Args:
            time_s: Seconds since 1970.
        """
        identity = None if self._handler is None else self._handler.principal.identity
        if identity is None or identity.expires_at_s is None or time_s < identity.expires_at_s or self._ending:
            return
        self._log("the login has expired", user=shortened(identity.name))
        self.end(ReasonCode.NOT_AUTHORIZED, why="revoked")

    def save_position(self) -> None:
        """Have the session's position stored soon, if it has moved."""
        if self._handler is not None:
            self._handler.save_position()

    def pump(self) -> None:
        """Send waiting messages, as many as the client and the connection can take."""
        if self._handler is not None:
            try:
                self._handler.pump()
            except Exception as error:  # noqa: BLE001 it ends this connection, no other
                self._failed(error)

    def _log(self, event: str, **details: object) -> None:
        log.info(event, **self._named, peer=self.peer, transport=self._transport, **details)

    # Receiving

    async def _receive(self) -> None:
        while self._ending is None:
            await self._hold_back()
            self._is_waiting = self._handler is not None
            data = await self._stream.receive_some(_RECEIVED_AT_ONCE)
            self._is_waiting = False
            if not data:
                self._peer_closed()
                return
            self._heard(data)
            if self._is_first and (stray := misdirected(bytes(data[:ENOUGH_BYTES]))) is not None:
                self._log("refused", error=stray.reason)
                self._end_with(stray.answer, why="protocol")
                return
            self._is_first = False
            packets, fault = decoded(self._decoder, data, self._services.statistics)
            handler = self._handler
            if handler is None:
                self._unaccepted.received(len(data))
            if handler is None and packets:
                has_published = any(isinstance(packet, Publish) for packet in packets)
                handler = await self._accept(packets.pop(0), has_published=has_published)
                self._unaccepted.release()
            if handler is not None:
                self._take(handler, packets, fault, len(data))
            elif fault is not None:
                raise fault

    def _heard(self, data: bytes | bytearray) -> None:
        self._heard_at_s = trio.current_time()
        self._services.statistics.bytes_received += len(data)

    def receive_resting(self, data: bytes) -> bool:
        """Handle what the client has sent while the connection rests; returns whether it goes on resting."""
        handler = self._handler
        assert handler is not None  # it rests only after its client was accepted
        self._quick_count = self._quick_count + 1 if trio.current_time() - self._heard_at_s < _QUICK_S else 0
        self._heard(data)
        try:
            self._take(handler, *decoded(self._decoder, data, self._services.statistics), len(data))
        except Exception as error:  # noqa: BLE001 it ends this connection, no other
            self._end_after(error)
        has_room = handler.has_room and self._output.has_room and not self._wait_s
        return has_room and self._quick_count < _MANY_QUICK

    async def _hold_back(self) -> None:
        """Read nothing while the client has sent too much for its user's quota, or more than there is room for."""
        handler = self._handler
        if self._wait_s or (handler is not None and not (handler.has_room and self._output.has_room)):
            self._is_reading = False
            await trio.sleep(self._wait_s)
            self._wait_s = 0.0
            if handler is not None:
                await handler.wait_for_room()
            await self._output.wait_for_room()
            self._heard_at_s = trio.current_time()
            self._is_reading = True

    def _keep_rate(self, account: Account, publish_count: int, received_bytes: int) -> None:
        """Count what the client has sent, and wait in `_hold_back` if that is too much for its user's quota."""
        wait_s = account.received(publish_count, received_bytes, trio.current_time())
        if account.is_overrun:
            account.is_overrun = False
            self._services.handshake.quotas.refusals.note(Limit.RATE, account.user)
            self._log("sends faster than its user's quota allows, although it was delayed")
            self.end(ReasonCode.MESSAGE_RATE_TOO_HIGH, why="rate")
        else:
            self._wait_s = wait_s

    def _has_memory_for(self, buffered_bytes: int) -> bool:
        """Count what the stream holds of messages that are not complete; without room the connection is refused."""
        try:
            self._unaccepted.buffered(buffered_bytes)
        except ConnectRefusedError as error:
            self._refuse(error)
            return False
        return True

    def _take(
        self, handler: PacketHandler, packets: list[Packet], fault: MqttProtocolError | None, received_bytes: int
    ) -> None:
        """Handle the packets of one receive, and the fault that comes after them."""
        if packets and self._ending is None:
            handler.take(packets)
            if (client := handler.disconnect) is not None:
                ending = Ending(publish_will=client.publish_will, expiry_interval_s=client.expiry_interval_s)
                self._end_with(b"", ending)
        if fault is not None:
            raise fault
        if self._account is not None:
            publish_count = sum(isinstance(packet, Publish) for packet in packets)
            self._keep_rate(self._account, publish_count, received_bytes)

    async def _accept(self, first: Packet, *, has_published: bool) -> PacketHandler:
        if not isinstance(first, Connect):
            raise ConnectRefusedError(
                ReasonCode.PROTOCOL_ERROR,
                f"the first packet is {type(first).__name__}, not CONNECT",
                is_answerable=False,
            )
        services = self._services
        self._version = first.version
        self._claimed_id = first.client_id
        self._is_reading = False
        may_have_left = partial(
            client_may_have_left, self._stream, services.pause_detector, self._heard_at_s, has_published
        )
        admission = await services.handshake.admit(first, self.peer, may_have_left, self._certificate_name)
        if isinstance(self._stream, LimitsUnaccepted):
            self._stream.peer_accepted()
        self._is_reading = True
        self._heard_at_s = trio.current_time()
        if admission.account is not None:
            self._account = admission.account
            self._leave_quota = partial(services.handshake.quotas.leave, admission.account, admission.principal)
        keep_alive_s = admission.terms.keep_alive_s
        self._silence_s = keep_alive_s * _KEEP_ALIVE_FACTOR if keep_alive_s else math.inf
        handler = self._handler = PacketHandler(
            admission,
            services,
            self._output,
            self._start,
            on_ready=self._has_messages,
            on_silent_refusal=self._end_after_silent_refusal,
        )
        if self._ending is None:
            services.statistics.client_connected()
        self._owner.admitted(self)
        if not handler.session.is_open:
            self.fenced()
        if not services.access.is_admitted(admission.principal):
            # The users were read again while the session was opened.
            self.follow_rights()
        # They may have changed, too.
        self.follow_bans()
        if self._ending is None:
            handler.begin()
        return handler

    def _has_messages(self) -> None:
        self._owner.has_messages(self)

    def _end_after_silent_refusal(self) -> None:
        # A client of MQTT 3.1.1 sends the message again after it has reconnected.
        self.end(ReasonCode.UNSPECIFIED_ERROR, why="refused_publish")
