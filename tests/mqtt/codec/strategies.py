"""Hypothesis strategies for whatever may be in a packet, and for packets that a version can say and a side may send."""

from __future__ import annotations

from typing import Any, Final, Literal

from hypothesis import strategies as st

from broker_adapter.mqtt_codec import EMPTY, Packet, Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packet_types import REASON_CODES, PacketType
from broker_adapter.mqtt_codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
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
    Unsubscribe,
    Will,
)

Sender = Literal["client", "server"]

versions = st.sampled_from(Version)
senders: st.SearchStrategy[Sender] = st.sampled_from(["client", "server"])

packet_ids = st.integers(1, 65_535)
two_bytes = st.integers(0, 65_535)
four_bytes = st.integers(0, 0xFFFF_FFFF)
flags = st.integers(0, 1)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
blobs = st.binary(max_size=12)
payloads = st.one_of(st.binary(max_size=20), st.integers(100, 200).map(bytes), st.just(bytes(16_384)))
qos_levels = st.integers(0, 2)

_level = st.text(st.characters(exclude_characters="+#/$", exclude_categories=["Cs", "Cc"]), max_size=5)
topics = st.lists(_level, min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def plain_filters(draw: st.DrawFn) -> str:
    """Topic filters that are no shared subscription."""
    levels = draw(st.lists(st.one_of(_level, st.just("+")), min_size=1, max_size=4))
    if draw(st.booleans()):
        levels.append("#")
    return "/".join(levels) or "#"


_share_names = _level.filter(bool)
shared_filters = st.builds("$share/{}/{}".format, _share_names, plain_filters())
filters = st.one_of(plain_filters(), plain_filters(), shared_filters)

_VALUES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "payload_format_indicator": flags,
    "message_expiry_interval": four_bytes,
    "content_type": texts,
    "response_topic": topics,
    "correlation_data": blobs,
    "session_expiry_interval": four_bytes,
    "assigned_client_identifier": texts,
    "server_keep_alive": two_bytes,
    "authentication_method": texts,
    "authentication_data": blobs,
    "request_problem_information": flags,
    "will_delay_interval": four_bytes,
    "request_response_information": flags,
    "response_information": texts,
    "server_reference": texts,
    "reason_string": texts,
    "receive_maximum": st.integers(1, 65_535),
    "topic_alias_maximum": two_bytes,
    "topic_alias": st.integers(1, 65_535),
    "maximum_qos": flags,
    "retain_available": flags,
    "maximum_packet_size": st.integers(1, 0xFFFF_FFFF),
    "wildcard_subscription_available": flags,
    "subscription_identifiers_available": flags,
    "shared_subscription_available": flags,
}
_user_properties = st.lists(st.tuples(texts, texts), max_size=3).map(tuple)
_subscription_identifiers = st.integers(1, 268_435_455)

_WILL: Final = (
    "payload_format_indicator",
    "message_expiry_interval",
    "content_type",
    "response_topic",
    "correlation_data",
)
_CONNECTION: Final = ("session_expiry_interval", "receive_maximum", "topic_alias_maximum", "maximum_packet_size")


def properties(*names_of: str, **others: st.SearchStrategy[Any]) -> st.SearchStrategy[Properties]:
    """Any of the named properties, and any user properties."""
    optional = {name: st.one_of(st.none(), _VALUES[name]) for name in names_of}
    some = st.builds(Properties, **optional, user_properties=_user_properties, **others)
    return st.one_of(st.just(EMPTY), some)


def _reasons(packet_type: PacketType, sender: Sender) -> st.SearchStrategy[ReasonCode]:
    return st.sampled_from(sorted(REASON_CODES[packet_type, sender]))


def _authentication(given_properties: Properties) -> bool:
    return given_properties.authentication_data is None or given_properties.authentication_method is not None


connect_properties = properties(
    *_CONNECTION,
    "authentication_method",
    "authentication_data",
    "request_problem_information",
    "request_response_information",
).filter(_authentication)
connack_properties = properties(
    *_CONNECTION,
    "assigned_client_identifier",
    "server_keep_alive",
    "authentication_method",
    "authentication_data",
    "response_information",
    "server_reference",
    "reason_string",
    "maximum_qos",
    "retain_available",
    "wildcard_subscription_available",
    "subscription_identifiers_available",
    "shared_subscription_available",
).filter(_authentication)
message_properties = properties(*_WILL)
answer_properties = properties("reason_string")


@st.composite
def wills(draw: st.DrawFn, version: Version) -> Will:
    """Wills of a version."""
    given_properties = draw(properties(*_WILL, "will_delay_interval")) if version is Version.V5 else EMPTY
    return Will(draw(topics), draw(blobs), draw(qos_levels), draw(st.booleans()), given_properties)


@st.composite
def connects(draw: st.DrawFn, version: Version | None = None) -> Connect:
    """CONNECT packets, of any version if none is given."""
    version = version or draw(versions)
    username, password = draw(st.one_of(st.none(), names)), draw(st.one_of(st.none(), blobs))
    clean_start, client_id = draw(st.booleans()), draw(names)
    if version is Version.V311:
        password = None if username is None else password
        clean_start = clean_start or not client_id
    return Connect(
        client_id,
        clean_start,
        draw(two_bytes),
        username,
        password,
        draw(st.one_of(st.none(), wills(version))),
        draw(connect_properties) if version is Version.V5 else EMPTY,
        version,
    )


@st.composite
def connacks(draw: st.DrawFn, version: Version) -> Connack:
    """CONNACK packets."""
    reason_code = draw(_reasons(PacketType.CONNACK, "server"))
    if version is Version.V311:
        reason_code = draw(st.sampled_from([ReasonCode(code) for code in (0x00, 0x84, 0x85, 0x88, 0x86, 0x87)]))
    session_present = draw(st.booleans()) if not reason_code else False
    return Connack(session_present, reason_code, draw(connack_properties) if version is Version.V5 else EMPTY)


@st.composite
def publishes(draw: st.DrawFn, version: Version, sender: Sender) -> Publish:
    """PUBLISH packets."""
    qos, topic, given_properties = draw(qos_levels), draw(topics), EMPTY
    if version is Version.V5:
        numbers = st.lists(_subscription_identifiers, max_size=3).map(tuple)
        if sender == "client":
            numbers = st.just(())
        given_properties = draw(properties(*_WILL, "topic_alias", subscription_identifiers=numbers))
    if given_properties.topic_alias is not None and draw(st.booleans()):
        topic = ""
    return Publish(
        topic,
        draw(payloads),
        qos,
        draw(st.booleans()),
        draw(st.booleans()) if qos else False,
        draw(packet_ids) if qos else 0,
        given_properties,
    )


@st.composite
def acknowledgements(draw: st.DrawFn, version: Version) -> Puback | Pubrec | Pubrel | Pubcomp:
    """PUBACK, PUBREC, PUBREL and PUBCOMP packets."""
    cls = draw(st.sampled_from(list(_ACKNOWLEDGEMENTS)))
    if version is Version.V311:
        return cls(draw(packet_ids))
    return cls(draw(packet_ids), draw(_reasons(_ACKNOWLEDGEMENTS[cls], "client")), draw(answer_properties))


_ACKNOWLEDGEMENTS: Final[dict[type[Puback | Pubrec | Pubrel | Pubcomp], PacketType]] = {
    Puback: PacketType.PUBACK,
    Pubrec: PacketType.PUBREC,
    Pubrel: PacketType.PUBREL,
    Pubcomp: PacketType.PUBCOMP,
}


@st.composite
def _requests(draw: st.DrawFn, version: Version) -> SubscriptionRequest:
    if version is Version.V311:
        return SubscriptionRequest(draw(filters), draw(qos_levels))
    wanted = draw(filters)
    no_local = draw(st.booleans()) and not wanted.startswith("$share/")
    return SubscriptionRequest(wanted, draw(qos_levels), no_local, draw(st.booleans()), draw(qos_levels))


@st.composite
def subscribes(draw: st.DrawFn, version: Version) -> Subscribe:
    """SUBSCRIBE packets."""
    requests = draw(st.lists(_requests(version), min_size=1, max_size=4))
    given_properties = EMPTY
    if version is Version.V5:
        numbers = st.lists(_subscription_identifiers, max_size=1).map(tuple)
        given_properties = draw(properties(subscription_identifiers=numbers))
    return Subscribe(draw(packet_ids), tuple(requests), given_properties)


@st.composite
def subacks(draw: st.DrawFn, version: Version) -> Suback:
    """SUBACK packets."""
    if version is Version.V311:
        one = st.sampled_from([ReasonCode(code) for code in (0, 1, 2, 0x80)])
        return Suback(draw(packet_ids), tuple(draw(st.lists(one, min_size=1, max_size=4))))
    codes = draw(st.lists(_reasons(PacketType.SUBACK, "server"), min_size=1, max_size=4))
    return Suback(draw(packet_ids), tuple(codes), draw(answer_properties))


@st.composite
def unsubscribes(draw: st.DrawFn, version: Version) -> Unsubscribe:
    """UNSUBSCRIBE packets."""
    given_properties = draw(properties()) if version is Version.V5 else EMPTY
    return Unsubscribe(draw(packet_ids), tuple(draw(st.lists(filters, min_size=1, max_size=4))), given_properties)


@st.composite
def unsubacks(draw: st.DrawFn, version: Version) -> Unsuback:
    """UNSUBACK packets."""
    if version is Version.V311:
        return Unsuback(draw(packet_ids))
    codes = draw(st.lists(_reasons(PacketType.UNSUBACK, "server"), min_size=1, max_size=4))
    return Unsuback(draw(packet_ids), tuple(codes), draw(answer_properties))


@st.composite
def disconnects(draw: st.DrawFn, version: Version, sender: Sender) -> Disconnect:
    """DISCONNECT packets."""
    if version is Version.V311:
        return Disconnect()
    allowed = properties("reason_string", "session_expiry_interval" if sender == "client" else "server_reference")
    return Disconnect(draw(_reasons(PacketType.DISCONNECT, sender)), draw(allowed))


@st.composite
def auths(draw: st.DrawFn, sender: Sender) -> Auth:
    """AUTH packets; a server's may be the short one."""
    reason_code = draw(_reasons(PacketType.AUTH, sender))
    if not reason_code and draw(st.booleans()):
        return Auth()
    allowed = properties("authentication_data", "reason_string", authentication_method=texts)
    return Auth(reason_code, draw(allowed.filter(lambda one: one is not EMPTY)))


def packets(version: Version, sender: Sender) -> st.SearchStrategy[Packet]:
    """Packets of a version that a side may send once a connection is there: all but CONNECT."""
    choices: list[st.SearchStrategy[Packet]] = [publishes(version, sender), acknowledgements(version)]
    if sender == "client":
        choices += [subscribes(version), unsubscribes(version), st.just(Pingreq())]
    else:
        choices += [connacks(version), subacks(version), unsubacks(version), st.just(Pingresp())]
    if version is Version.V5:
        choices.append(auths(sender))
    if version is Version.V5 or sender == "client":
        choices.append(disconnects(version, sender))
    return st.one_of(choices)
