"""Settings of the sink ``mqtt``."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import attrs
from attrs import field

from broker_adapter.mqtt_codec import Version
from broker_adapter.sinks.mqtt.topic_template import TopicTemplate
from broker_adapter.sinks.setting_kinds import File, ServerAddress, Text, check_secret, timeout_s
from journal.settings.values import Kind, parse_text, within


def _parse_template(value: object) -> str:
    template = parse_text(value)
    TopicTemplate(template)
    return template


Template = Annotated[
    str, Kind(_parse_template, 'a topic name in which "{column}" stands for a value, "{{" and "}}" for braces')
]


class Spoken(enum.StrEnum):
    """Versions of MQTT."""

    V5 = "5"
    V311 = "3.1.1"

    @property
    def version(self) -> Version:
        """The version as a value of the codec."""
        return _VERSIONS[self]


_VERSIONS: Final = {Spoken.V5: Version.V5, Spoken.V311: Version.V311}


@attrs.frozen
class MqttSettings:
    """Settings of the sink ``mqtt``.

    Attributes:
        address: Address of the broker.
        topic: Topic of a row; ``{column}`` is replaced by its value.
        payload: Column with the payload. Empty: all columns, as a JSON object.
        retain: Whether messages are retained.
        version: Protocol version. MQTT 3.1.1 cannot report why a message is refused.
        client_id: Client identifier; empty for ``journal-`` and the queue's id. Two sinks must not share one.
        user: User name, sent with the password, if it is given.
        password: Password of the user.
        password_file: File with the password, instead of ``password``.
        tls: Use TLS.
        ca_file: CA certificates for the broker's certificate; those of the system if it is empty.
        certificate_file: Certificate of the sink, for brokers that require one.
        key_file: Its private key, without a passphrase.
        keep_alive_s: Keep-alive interval; the broker must answer twice in this time, in seconds.
        timeout_s: Longest time for the broker to confirm a batch, in seconds.
        max_in_flight: Most batches at once; their order is kept.
    """

    address: ServerAddress
    topic: Template = "{topic}"
    payload: Text = "payload"
    retain: bool = False
    version: Spoken = Spoken.V5
    client_id: Text = ""
    user: Text = ""
    password: Text = field(default="", repr=False)
    password_file: File = ""
    tls: bool = False
    ca_file: File = ""
    certificate_file: File = ""
    key_file: File = ""
    keep_alive_s: int = field(default=30, metadata=within("seconds", 2, 65_535))
    timeout_s: int = timeout_s()
    max_in_flight: int = field(default=4, metadata=within("batches", 1, 64))


def check(settings: MqttSettings) -> tuple[str, ...]:
    """Problems of settings that are valid each by itself."""
    problems = list(check_secret("password", settings.password, settings.password_file))
    if (settings.password or settings.password_file) and not settings.user:
        problems.append("password is given without a user; give user too")
    if not settings.tls and (settings.ca_file or settings.certificate_file):
        problems.append("ca_file or certificate_file is given, but tls is false")
    if bool(settings.certificate_file) != bool(settings.key_file):
        problems.append("certificate_file and key_file belong together; give both or neither")
    return tuple(problems)
