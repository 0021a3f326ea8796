"""SUBSCRIBE and UNSUBSCRIBE of one client, and the subscriptions that are restored with its session.

Requests are handled one after another, in a task of their own: while the store cannot be reached they wait, and the
connection handles other packets. SUBSCRIBEs that wait are handled together: their filters are opened at the same time,
and the session is stored once for all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

import attrs
import trio

from broker_adapter.errors import ServerRestoredError, StorageError
from broker_adapter.mqtt.access.quotas import Limit
from broker_adapter.mqtt.connection.handshake import Admission
from broker_adapter.mqtt.connection.services import Services
from broker_adapter.mqtt.delivery import Arrival, Inbox
from broker_adapter.mqtt.delivery.replays import parse_replay_start
from broker_adapter.mqtt.delivery.sender import MessageSender
from broker_adapter.mqtt.model.position import BEGINNING, Position, RetainedScan
from broker_adapter.mqtt.model.subscription import SubscriptionOptions
from broker_adapter.mqtt.model.topics import FilterRequest, TopicRefusedError, parse_filter
from broker_adapter.mqtt.publish.store_changes import until_reached
from broker_adapter.mqtt_codec import ReasonCode, encode
from broker_adapter.mqtt_codec.errors import ProtocolViolationError
from broker_adapter.mqtt_codec.packets import Suback, Subscribe, SubscriptionRequest, Unsuback, Unsubscribe
from broker_adapter.mqtt_codec.text import shown
from journal.net.output import Output
from shards.topics.topic_filters import is_filter, matches

MAX_WAITING: Final = 32
"""Most requests that wait for earlier ones; beyond that nothing more is read from the client."""

MAX_SHARED: Final = 500
"""Most shared subscriptions of one session: they all end with it in one commit of the store, whose size is limited."""
_REPLAY_FROM: Final = "replay-from"
_REFUSED: Final = ReasonCode.UNSPECIFIED_ERROR


@attrs.frozen(slots=True)
class _Granted:
    """A subscription that was made; used for its retained messages.

    Attributes:
        live_after: Messages behind this position are delivered as live messages, retained or not.
    """

    request: FilterRequest
    options: SubscriptionOptions
    wants_retained: bool = False
    live_after: Position = BEGINNING


_Outcome: TypeAlias = _Granted | TopicRefusedError | StorageError
"""What became of a filter: a subscription, or why there is none."""


@attrs.define(slots=True)
class _Opening:
    """A subscription of this client alone that is made together with others."""

    asked: SubscriptionRequest
    request: FilterRequest
    options: SubscriptionOptions
    outcome: _Outcome | None = None


@attrs.define(slots=True)
class _Openings:
    """Subscriptions that are about to be made, by their filters.

    Attributes:
        new_count: How many of them the session does not have yet.
    """

    by_filter: dict[str, _Opening] = attrs.Factory(dict)
    new_count: int = 0

    def add(self, opening: _Opening, *, is_new: bool) -> None:
        """Add one."""
        self.by_filter[opening.asked.topic_filter] = opening
        self.new_count += is_new

    def take_all(self) -> list[_Opening]:
        """All of them; from now on there are none."""
        taken, self.by_filter, self.new_count = list(self.by_filter.values()), {}, 0
        return taken


class SubscriptionHandler:
    """The subscriptions of one connection.

    Args:
        admission: The accepted client, whose session keeps the subscriptions.
        services: The parts of the broker.
        inbox: Receives the messages that match.
        sender: Gets retained messages, before live ones.
        output: Where answers are sent.
        start: Starts a task that ends with the connection.
    """

    __slots__ = (
        "_admission",
        "_has_narrowed",
        "_inbox",
        "_is_working",
        "_max_subscriptions",
        "_output",
        "_principal",
        "_progress",
        "_replays",
        "_requests",
        "_sender",
        "_services",
        "_session",
        "_start",
    )

    def __init__(
        self,
        admission: Admission,
        services: Services,
        inbox: Inbox,
        sender: MessageSender,
        output: Output,
        start: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._admission = admission
        self._session = admission.session
        self._principal = admission.principal
        self._services = services
        self._inbox = inbox
        self._sender = sender
        self._output = output
        self._start = start
        limit, quota = services.limits.max_subscriptions, services.handshake.quotas.of(admission.principal.username)
        self._max_subscriptions = min(quota.subscriptions or limit, limit)
        self._requests: list[Subscribe | Callable[[], Awaitable[None]]] = []  # few, see `MAX_WAITING`
        self._is_working = False
        self._progress: trio.lowlevel.ParkingLot | None = None  # made for the first task that waits
        self._replays: dict[str, str] = {}
        self._has_narrowed = False

    @property
    def has_room(self) -> bool:
        """Whether more requests are accepted."""
        return len(self._requests) < MAX_WAITING

    async def wait_for_room(self) -> None:
        """Return when `has_room` is true."""
        while not self.has_room:
            if self._progress is None:
                self._progress = trio.lowlevel.ParkingLot()
            await self._progress.park()

    def restore(self) -> None:
        """Restore the subscriptions of the session, before any other request is handled."""
        if self._session.subscriptions:
            self._do(self._restore)

    def subscribe(self, packet: Subscribe) -> None:
        """Queue a SUBSCRIBE."""
        self._do(packet)

    def unsubscribe(self, packet: Unsubscribe) -> None:
        """Queue an UNSUBSCRIBE."""
        self._do(lambda: self._unsubscribe(packet))

    def follow_rights(self) -> None:
        """Queue the end of the subscriptions and replays that the rules do not allow any more."""
        if self._session.subscriptions or self._replays or self._requests:
            # Messages that are not allowed any more may be on their way to the inbox, or wait there.
            self._sender.checks_topics = True
            self._do(self._narrow)

    def _do(self, request: Subscribe | Callable[[], Awaitable[None]]) -> None:
        self._requests.append(request)
        if not self._is_working:
            self._is_working = True
            self._start(self._work)

    async def _work(self) -> None:
        while self._requests:
            request = self._requests[0]
            if isinstance(request, Subscribe):
                packets = self._first_subscribes()
                await self._subscribe(packets)
                del self._requests[: len(packets)]
            else:
                await request()
                del self._requests[0]
            if self._progress is not None:
                self._progress.unpark_all()
        self._is_working = False

    def _first_subscribes(self) -> list[Subscribe]:
        """The SUBSCRIBEs at the front of the queue."""
        found: list[Subscribe] = []
        for request in self._requests:
            if not isinstance(request, Subscribe):
                break
            found.append(request)
        return found

    async def _restore(self) -> None:
        await self._end_denied()
        plain: dict[str, SubscriptionOptions] = {}
        shared: list[tuple[FilterRequest, SubscriptionOptions]] = []
        for text, options in self._session.subscriptions.items():
            request = parse_filter(text)
            if request.group:
                shared.append((request, options))
            else:
                plain[text] = options
        await until_reached(lambda: self._services.distributor.restore(self._inbox, plain))
        for request, options in shared:
            membership = self._session.memberships.get((request.group, request.topic_filter))
            if membership is not None:
                join = partial(
                    self._services.distributor.join_group, self._inbox, membership.group, request.topic_filter
                )
                await until_reached(partial(join, options, after=membership.after))

    async def _end_denied(self) -> None:
        """End subscriptions that are not allowed to the client: the rules or the user changed since they were made."""
        requests = {text: parse_filter(text) for text in self._session.subscriptions}
        denied = {text: request for text, request in requests.items() if not self._is_allowed(request)}
        for text, request in denied.items():
            del self._session.subscriptions[text]
            self._sender.forget_retained(text)
            if request.group:
                await self._services.sessions.leave_share(self._session, request.group, request.topic_filter)
        if denied:
            await self._services.sessions.save_subscriptions(self._session)
        self._check_topics()

    def _is_allowed(self, request: FilterRequest) -> bool:
        """Whether the rules allow a subscription, of which denied topics are left out at delivery.

        A shared one must be allowed as a whole: a message that is left out for one member would reach no other.
        """
        is_asked = self._services.access.may_subscribe if request.group else self._services.access.may_subscribe_except
        return is_asked(self._principal, request.topic_filter)

    def _check_topics(self) -> None:
        """Have each message checked if the rules deny some topics of a subscription or replay."""
        requests = [parse_filter(text) for text in (*self._session.subscriptions, *self._replays)]
        self._sender.checks_topics = self._has_narrowed or not all(
            self._services.access.may_subscribe(self._principal, request.topic_filter) for request in requests
        )

    async def _narrow(self) -> None:
        texts = {*self._session.subscriptions, *self._replays}
        denied = [text for text in texts if not self._is_allowed(parse_filter(text))]
        for text in denied:
            await self._end(text)
        if denied:
            # Messages of these may wait in the inbox, so from now on each one is checked.
            self._has_narrowed = True
            await self._services.sessions.save_subscriptions(self._session)
        self._check_topics()

    # SUBSCRIBE

    async def _subscribe(self, packets: list[Subscribe]) -> None:
        """Handle SUBSCRIBEs that waited, together."""
        first: list[Arrival] = []
        self._sender.hold()
        try:
            outcomes = await self._grant_all(packets)
            granted = [outcome for outcome in outcomes if isinstance(outcome, _Granted)]
            for made in granted:
                if made.wants_retained:
                    first += self._schedule_retained(made)
            if any(made.request.replay_from is None and not made.request.group for made in granted):
                # Stored together with the retained messages that are still to be sent: they survive a lost connection.
                await self._services.sessions.save_subscriptions(self._session)
            codes = map(_code_of, outcomes)
            for packet in packets:
                self._answer(Suback(packet.packet_id, tuple(islice(codes, len(packet.subscriptions)))))
        finally:
            self._sender.release(first)
        self._output.flush()

    async def _grant_all(self, packets: list[Subscribe]) -> list[_Outcome]:
        """Make the subscriptions of SUBSCRIBEs; returns what became of each filter, in order.

        Those of this client alone are made at the same time, since each waits for an answer of the store.

        Raises:
            ServerRestoredError: The store was restored from a backup.
        """
        outcomes: list[_Outcome | _Opening] = []
        openings = _Openings()
        for packet in packets:
            properties = packet.properties
            replay_from = next((value for name, value in properties.user_properties if name == _REPLAY_FROM), None)
            subscription_id = next(iter(properties.subscription_identifiers), 0)
            for asked in packet.subscriptions:
                text = asked.topic_filter
                if text in openings.by_filter:
                    await self._open_all(openings)
                options = SubscriptionOptions(
                    asked.qos, asked.no_local, asked.retain_as_published, asked.retain_handling, subscription_id
                )
                try:
                    request = self._request_of(text, replay_from, openings.new_count)
                    if request.replay_from is None and not request.group:
                        opening = _Opening(asked, request, options)
                        openings.add(opening, is_new=text not in self._session.subscriptions)
                        outcomes.append(opening)
                    else:
                        await self._open_all(openings)
                        outcomes.append(await self._grant_other(text, request, options))
                except TopicRefusedError as error:
                    outcomes.append(error)
                    if error.reason_code == ReasonCode.NOT_AUTHORIZED:
                        self._services.audit.denied("subscribe", self._principal, self._admission.peer, text)
                except ServerRestoredError:
                    raise
                except StorageError as error:
                    outcomes.append(error)
        await self._open_all(openings)
        return [_known(each.outcome) if isinstance(each, _Opening) else each for each in outcomes]

    def _request_of(self, text: str, replay_from: str | None, opening_count: int) -> FilterRequest:
        """The request for a filter, if rules and quotas allow it.

        Args:
            text: The filter.
            replay_from: From where messages are replayed, if the filter itself does not say so.
            opening_count: How many other new subscriptions are about to be made.

        Raises:
            TopicRefusedError: It is not allowed.
        """
        request = parse_filter(text)
        if replay_from is not None and request.replay_from is None:
            request = attrs.evolve(request, replay_from=replay_from)
        topic_filter = request.topic_filter
        if not self._is_allowed(request):
            raise TopicRefusedError(ReasonCode.NOT_AUTHORIZED, f"{shown(topic_filter)} is not allowed")
        if not self._services.access.may_subscribe(self._principal, topic_filter):
            self._sender.checks_topics = True
        subscriptions = self._session.subscriptions
        count = len(subscriptions) + len(self._replays) + opening_count
        if text not in subscriptions and count >= self._max_subscriptions:
            self._services.handshake.quotas.refusals.note(Limit.SUBSCRIPTIONS, self._principal.username)
            raise TopicRefusedError(ReasonCode.QUOTA_EXCEEDED, f"more than {self._max_subscriptions} subscriptions")
        memberships = self._session.memberships
        is_new_share = bool(request.group) and (request.group, topic_filter) not in memberships
        if is_new_share and len(memberships) >= MAX_SHARED:
            raise TopicRefusedError(ReasonCode.QUOTA_EXCEEDED, f"more than {MAX_SHARED} shared subscriptions")
        return request

    async def _grant_other(self, text: str, request: FilterRequest, options: SubscriptionOptions) -> _Granted:
        """Make a shared subscription, or begin a replay."""
        if request.replay_from is not None:
            await self._replay(text, request, options)
        else:
            await self._join(text, request, options)
        return _Granted(request, options)

    async def _open_all(self, openings: _Openings) -> None:
        """Make subscriptions at the same time.

        Raises:
            ServerRestoredError: The store was restored from a backup.
        """
        wanted = openings.take_all()
        if len(wanted) == 1:
            await self._open(wanted[0])
        elif wanted:
            async with trio.open_nursery() as nursery:
                for each in wanted:
                    nursery.start_soon(self._open, each)
        for each in wanted:
            if isinstance(each.outcome, ServerRestoredError):
                raise each.outcome

    async def _open(self, opening: _Opening) -> None:
        try:
            opening.outcome = await self._grant(opening.asked, opening.request, opening.options)
        except StorageError as error:
            opening.outcome = error

    async def _grant(
        self, asked: SubscriptionRequest, request: FilterRequest, options: SubscriptionOptions
    ) -> _Granted:
        distributor, subscriptions = self._services.distributor, self._session.subscriptions
        text, is_new = asked.topic_filter, asked.topic_filter not in self._session.subscriptions
        since = await until_reached(lambda: distributor.subscribe(self._inbox, request.topic_filter, options))
        options = subscriptions[text] = attrs.evolve(options, since=since)
        wants_retained = asked.retain_handling == 0 or (asked.retain_handling == 1 and is_new)
        if wants_retained and not is_new:
            # The client got messages retained up to now as live ones, and gets them once more as retained ones.
            since = await until_reached(distributor.current_position)
        return _Granted(request, options, wants_retained, since)

    async def _join(self, text: str, request: FilterRequest, options: SubscriptionOptions) -> None:
        topic_filter = request.topic_filter
        self._session.subscriptions[text] = options
        after = await until_reached(self._services.distributor.current_position)
        membership = await self._services.sessions.join_share(self._session, request.group, topic_filter, after=after)
        await until_reached(
            lambda: self._services.distributor.join_group(
                self._inbox, membership.group, topic_filter, options, after=membership.after
            )
        )

    async def _replay(self, text: str, request: FilterRequest, options: SubscriptionOptions) -> None:
        assert request.replay_from is not None
        if request.group or request.is_system:
            raise TopicRefusedError(ReasonCode.TOPIC_FILTER_INVALID, f"{shown(text)} cannot be replayed")
        try:
            start = parse_replay_start(request.replay_from, now_us=self._services.clock.now_us())
        except ValueError as error:
            raise TopicRefusedError(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, str(error)) from error
        if start.kind == "offset" and is_filter(request.topic_filter):
            raise TopicRefusedError(
                ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, f"{shown(text)}: an offset needs a single topic, not a filter"
            )
        await until_reached(
            lambda: self._services.distributor.replay(self._inbox, request.topic_filter, start, options)
        )
        self._replays[text] = request.topic_filter

    def _schedule_retained(self, made: _Granted) -> list[Arrival]:
        """Schedule the retained messages of a new subscription; those of `$SYS`, which are not stored, are returned."""
        request, options = made.request, made.options
        if not request.is_system and not request.topic_filter.startswith("$SYS"):
            self._sender.forget_retained(request.topic_filter)
            self._session.retained.append(
                RetainedScan(request.topic_filter, made.live_after, options.qos, options.subscription_id)
            )
            return []
        ids = (options.subscription_id,) if options.subscription_id else ()
        return [
            Arrival(message, min(message.qos, options.qos), retain=True, subscription_ids=ids)
            for topic, message in self._services.system_messages.items()
            if matches(request.topic_filter, topic)
        ]

    def _answer(self, packet: Suback | Unsuback) -> None:
        data = encode(packet, self._session.version)
        if len(data) > self._admission.terms.max_packet_bytes:
            raise ProtocolViolationError(
                ReasonCode.PACKET_TOO_LARGE,
                f"the answer has {len(data)} bytes, the client accepts {self._admission.terms.max_packet_bytes}",
            )
        self._output.collect(data)

    # UNSUBSCRIBE

    async def _unsubscribe(self, packet: Unsubscribe) -> None:
        codes = [await self._end(text) for text in packet.topic_filters]
        await self._services.sessions.save_subscriptions(self._session)
        self._answer(Unsuback(packet.packet_id, tuple(codes)))
        self._output.flush()

    async def _end(self, text: str) -> ReasonCode:
        subscriptions = self._session.subscriptions
        if (replayed := self._replays.pop(text, None)) is not None:
            await self._services.distributor.stop_replay(self._inbox, replayed)
            if text not in subscriptions:
                return ReasonCode.SUCCESS
        if text not in subscriptions:
            return ReasonCode.NO_SUBSCRIPTION_EXISTED
        request = parse_filter(text)
        if not request.group:
            await until_reached(lambda: self._services.distributor.unsubscribe(self._inbox, request.topic_filter))
            self._sender.forget_retained(text)
            del subscriptions[text]
            return ReasonCode.SUCCESS
        membership = self._session.memberships.get((request.group, request.topic_filter))
        if membership is not None:
            await until_reached(
                lambda: self._services.distributor.leave_group(self._inbox, membership.group, request.topic_filter)
            )
        del subscriptions[text]
        await self._services.sessions.leave_share(self._session, request.group, request.topic_filter)
        return ReasonCode.SUCCESS


def _known(outcome: _Outcome | None) -> _Outcome:
    assert outcome is not None  # it was waited for
    return outcome


def _code_of(outcome: _Outcome) -> ReasonCode:
    if isinstance(outcome, _Granted):
        return ReasonCode(outcome.options.qos)
    return outcome.reason_code if isinstance(outcome, TopicRefusedError) else _REFUSED
