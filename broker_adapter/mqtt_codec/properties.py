"""The properties of MQTT 5 packets (section 2.2.2 of the standard), as one value for all packet types.

`mqtt_codec.property_table` declares which packets may have which properties, and their byte layouts.

They are a struct of msgspec, since one is made for each message with properties, on its way in and on its way out: a
frozen class of attrs sets 27 attributes one by one. Python's garbage collector does not look at them, as they cannot be
part of a cycle. `msgspec.structs.replace` makes changed copies.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Properties(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All properties; None (or an empty tuple, for one that may repeat) means that it was not sent.

    Times are in seconds, sizes in bytes, as in the standard.
    """

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifiers_available: int | None = None
    shared_subscription_available: int | None = None


EMPTY: Final = Properties()
"""No properties; packets of MQTT 3.1.1 have this value."""
