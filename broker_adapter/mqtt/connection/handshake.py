"""CONNECT and CONNACK: whether a client is accepted, its identity, its session, and the limits agreed on with it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Final

import attrs

from broker_adapter.mqtt.access.audit import BrokerAudit
from broker_adapter.mqtt.access.bans import Ban, Bans
from broker_adapter.mqtt.access.permissions import Access, Principal, host_of, user_shown
from broker_adapter.mqtt.access.quotas import Account, ConnectsTooFastError, QuotaError, Quotas
from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt.model.statistics import RefusalReason
from broker_adapter.mqtt.model.topics import TopicRefusedError, parse_topic
from broker_adapter.mqtt.session import (
    ClientGoneError,
    Session,
    SessionOfAnotherUserError,
    Sessions,
    StoreUnavailableError,
)
from broker_adapter.mqtt.session.takeover import SessionRequest
from broker_adapter.mqtt_codec import Properties, ReasonCode, Version, encode
from broker_adapter.mqtt_codec.packets import Connack, Connect
from broker_adapter.mqtt_codec.text import shown
from shards.topics.topic_filters import is_filter

REFUSALS: Final[dict[ReasonCode, RefusalReason]] = {
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: "credentials",
    ReasonCode.BAD_AUTHENTICATION_METHOD: "credentials",
    ReasonCode.NOT_AUTHORIZED: "not_authorized",
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: "client_id",
    ReasonCode.PACKET_TOO_LARGE: "packet_size",
    ReasonCode.SERVER_BUSY: "memory",
    ReasonCode.QUOTA_EXCEEDED: "quota",
    ReasonCode.BANNED: "banned",
    ReasonCode.CONNECTION_RATE_EXCEEDED: "quota",
    ReasonCode.SERVER_UNAVAILABLE: "store",
}
"""Reason under which a refused CONNECT is counted; all other reason codes count as ``protocol``."""

_MAX_PACKET_ID: Final = 65_535
_UNLIMITED_BYTES: Final = 268_435_460
_AUDITED: Final = {
    ReasonCode.NOT_AUTHORIZED,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    ReasonCode.QUOTA_EXCEEDED,
    ReasonCode.BANNED,
}
"""Reasons of refusals of an authenticated client that are in the audit log."""


class ConnectRefusedError(Exception):
    """The client is not accepted.

    Attributes:
        reason_code: Reason code of CONNACK.
        is_answerable: False if no CONNACK is sent, as MQTT 3.1.1 requires for a malformed CONNECT.
    """

    def __init__(self, reason_code: ReasonCode, message: str, *, is_answerable: bool = True) -> None:
        super().__init__(message)
        self.reason_code = reason_code
        self.is_answerable = is_answerable


@attrs.frozen(slots=True)
class Terms:
    """What CONNECT and CONNACK agreed on.

    Attributes:
        keep_alive_s: Keep-alive interval; 0 switches it off.
        receive_maximum: Most unacknowledged QoS 1 and 2 messages to the client.
        max_packet_bytes: Largest packet that the client accepts.
        topic_alias_maximum: Topic aliases that the broker may set towards the client.
        may_extend_expiry: Whether DISCONNECT may change the session expiry interval.
    """

    version: Version
    keep_alive_s: int
    receive_maximum: int
    max_packet_bytes: int
    topic_alias_maximum: int
    may_extend_expiry: bool


@attrs.frozen(slots=True)
class Admission:
    """A client that was accepted.

    Attributes:
        peer: Its address, ``HOST:PORT``.
        connack: The CONNACK, encoded.
        session_present: Whether it says that the client's session was stored.
        account: The use that its user makes of its quota; None without a quota. `Quotas.leave` ends the connection's.
    """

    principal: Principal
    peer: str
    session: Session
    terms: Terms
    connack: bytes
    session_present: bool
    account: Account | None = None


class Handshake:
    """Decides on CONNECT packets.

    Args:
        access: Authenticates clients.
        sessions: Opens their sessions.
        limits: Limits of the broker.
        quotas: Limits of users.
        audit: The audit log.
        bans: Clients that may not connect.
    """

    def __init__(
        self,
        access: Access,
        sessions: Sessions,
        limits: Limits,
        quotas: Quotas | None = None,
        audit: BrokerAudit | None = None,
        bans: Bans | None = None,
    ) -> None:
        self._access = access
        self._sessions = sessions
        self._limits = limits
        self._audit = audit or BrokerAudit()
        self._bans = Bans(lambda: 0) if bans is None else bans
        self.quotas = quotas or Quotas()

    async def admit(
        self, connect: Connect, peer: str, may_have_left: Callable[[bool], bool], certificate_name: str = ""
    ) -> Admission:
        """Accept a client. When this returns, its session belongs to this broker.

        Args:
            connect: Its CONNECT.
            peer: Its address, ``HOST:PORT``.
            may_have_left: Called with whether the session has an owner; returns whether the client may have closed this
                connection and be connected elsewhere.
            certificate_name: The name in its certificate; empty without one.

        Raises:
            ConnectRefusedError: The client is refused.
        """
        if (ban := self._bans.of_host(host_of(peer))) is not None:
            # Before the password is checked, which costs the broker time.
            self._audit.denied("connect", Principal(connect.client_id), peer, str(ban), "banned")
            raise _banned(ban)
        method = connect.properties.authentication_method
        if method is not None:
            raise ConnectRefusedError(ReasonCode.BAD_AUTHENTICATION_METHOD, f"authentication method {shown(method)}")
        client_id = self._client_id(connect)
        topic = self._will_topic(connect)
        principal = await self._access.authenticate(
            client_id, connect.username, connect.password, peer, certificate_name
        )
        if principal is None:
            self._audit.login_refused(connect.username, peer)
            raise ConnectRefusedError(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "wrong user name or password")
        self._audit.logged_in(principal, peer)
        try:
            admission, taken_from = await self._open(principal, connect, peer, topic, may_have_left)
        except ConnectRefusedError as error:
            if error.reason_code in _AUDITED:
                self._audit.denied("connect", principal, peer, topic or "", error.reason_code.name.lower())
            raise
        if taken_from:
            self._audit.took_over(principal, peer, taken_from)
        return admission

    async def _open(
        self,
        principal: Principal,
        connect: Connect,
        peer: str,
        will_topic: str | None,
        may_have_left: Callable[[bool], bool],
    ) -> tuple[Admission, str]:
        """Open the session of an authenticated client; return also the broker from which it was taken."""
        client_id = principal.client_id
        if (ban := self._bans.of_client(principal)) is not None:
            raise _banned(ban)
        if connect.client_id and not self._access.may_use_client_id(principal):
            raise ConnectRefusedError(
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                f"access.client_ids does not allow {user_shown(principal.username)} to use the client "
                f"identifier {shown(client_id)}",
            )
        if will_topic is not None and not self._access.may_publish(principal, will_topic):
            raise ConnectRefusedError(
                ReasonCode.NOT_AUTHORIZED, f"the client may not publish its will to {shown(will_topic)}"
            )
        expiry_interval_s = self._expiry_interval_s(connect)
        terms = self._terms(connect)
        connack = Connack(properties=self._connack_properties(connect, client_id, terms, expiry_interval_s))
        if len(encode(connack, connect.version)) > terms.max_packet_bytes:
            raise ConnectRefusedError(
                ReasonCode.PACKET_TOO_LARGE,
                f"the client accepts packets of {terms.max_packet_bytes} bytes, CONNACK needs more",
                is_answerable=False,
            )
        try:
            account = self.quotas.enter(principal)
        except QuotaError as error:
            raise self._over_quota(principal, error) from error
        opened = None
        try:
            opened = await self._sessions.open(
                SessionRequest(
                    client_id=client_id,
                    user=principal.username,
                    host=host_of(peer),
                    version=connect.version,
                    clean_start=connect.clean_start,
                    expiry_interval_s=expiry_interval_s,
                    will=connect.will,
                ),
                may_open=partial(self._access.may_open_session, principal),
                may_have_left=may_have_left,
            )
        except QuotaError as error:
            raise self._over_quota(principal, error) from error
        except SessionOfAnotherUserError as error:
            raise ConnectRefusedError(ReasonCode.NOT_AUTHORIZED, str(error)) from error
        except (StoreUnavailableError, ClientGoneError) as error:
            raise ConnectRefusedError(ReasonCode.SERVER_UNAVAILABLE, str(error)) from error
        finally:
            if opened is None and account is not None:
                self.quotas.leave(account, principal)
        connack.session_present = opened.present
        return (
            Admission(
                principal, peer, opened.session, terms, encode(connack, connect.version), opened.present, account
            ),
            opened.taken_from,
        )

    def _over_quota(self, principal: Principal, error: QuotaError) -> ConnectRefusedError:
        self.quotas.refusals.note(error.limit, principal.username)
        is_rate = isinstance(error, ConnectsTooFastError)
        return ConnectRefusedError(
            ReasonCode.CONNECTION_RATE_EXCEEDED if is_rate else ReasonCode.QUOTA_EXCEEDED,
            f"{user_shown(principal.username)} may not connect: {error}",
        )

    def _terms(self, connect: Connect) -> Terms:
        properties, limits = connect.properties, self._limits
        return Terms(
            connect.version,
            self._keep_alive_s(connect),
            min(properties.receive_maximum or _MAX_PACKET_ID, limits.send_maximum),
            properties.maximum_packet_size or _UNLIMITED_BYTES,
            min(properties.topic_alias_maximum or 0, limits.topic_alias_maximum),
            may_extend_expiry=bool(properties.session_expiry_interval),
        )

    def _client_id(self, connect: Connect) -> str:
        client_id = connect.client_id
        if client_id:
            if len(client_id.encode()) > self._limits.max_client_id_bytes:
                raise ConnectRefusedError(
                    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                    f"client identifier of more than {self._limits.max_client_id_bytes} bytes",
                )
            return client_id
        if connect.version is Version.V311 and not connect.clean_start:
            raise ConnectRefusedError(
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "a session without clean session needs a client identifier"
            )
        return f"auto-{secrets.token_hex(12)}"

    def _will_topic(self, connect: Connect) -> str | None:
        if connect.will is None:
            return None
        try:
            topic, delay_s = parse_topic(connect.will.topic)
        except TopicRefusedError as error:
            raise ConnectRefusedError(
                error.reason_code, f"will: {error}", is_answerable=connect.version is Version.V5
            ) from error
        if delay_s is not None:
            raise ConnectRefusedError(
                ReasonCode.TOPIC_NAME_INVALID,
                "will: use the will delay interval to delay it",
                is_answerable=connect.version is Version.V5,
            )
        return topic

    def _expiry_interval_s(self, connect: Connect) -> int:
        longest = self._limits.max_session_expiry_s
        if connect.version is Version.V311:
            return 0 if connect.clean_start else longest
        return min(connect.properties.session_expiry_interval or 0, longest)

    def _keep_alive_s(self, connect: Connect) -> int:
        longest = self._limits.max_keep_alive_s
        if connect.version is Version.V311 or not longest or 0 < connect.keep_alive_s <= longest:
            return connect.keep_alive_s
        return longest

    def _connack_properties(self, connect: Connect, client_id: str, terms: Terms, expiry_interval_s: int) -> Properties:
        if connect.version is Version.V311:
            return Properties()
        limits, asked = self._limits, connect.properties
        wants_response_information = asked.request_response_information == 1 and not is_filter(client_id)
        return Properties(
            session_expiry_interval=(
                expiry_interval_s if expiry_interval_s != (asked.session_expiry_interval or 0) else None
            ),
            receive_maximum=limits.receive_maximum if limits.receive_maximum < _MAX_PACKET_ID else None,
            maximum_packet_size=limits.max_packet_bytes,
            assigned_client_identifier=None if connect.client_id else client_id,
            topic_alias_maximum=limits.topic_alias_maximum or None,
            server_keep_alive=terms.keep_alive_s if terms.keep_alive_s != connect.keep_alive_s else None,
            response_information=f"response/{client_id}/" if wants_response_information else None,
        )

    def changed_expiry_s(self, expiry_interval_s: int) -> int:
        """The session expiry interval that applies when DISCONNECT asks for this one, in seconds."""
        return min(expiry_interval_s, self._limits.max_session_expiry_s)


def _banned(ban: Ban) -> ConnectRefusedError:
    return ConnectRefusedError(ReasonCode.BANNED, f"{ban} is banned")
