"""Settings of the sink ``http``."""

from __future__ import annotations

import enum
import re
from typing import Final

import attrs
from attrs import field

from broker_adapter.sinks.setting_kinds import File, Text, Texts, check_secret, timeout_s
from journal.settings.values import OptionalUrl, Url, within

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")

OWN_HEADERS: Final = frozenset(
    {
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "idempotency-key",
        "journal-bridge",
        "journal-first-offset",
        "journal-next-offset",
        "journal-queue",
        "transfer-encoding",
    }
)
"""Headers that the sink sets itself, in lower case."""


class Method(enum.StrEnum):
    """Request methods."""

    POST = "POST"
    PUT = "PUT"


class Format(enum.StrEnum):
    """Formats of a body: one array of objects, or one object per line."""

    JSON = "json"
    LINES = "lines"


class Compression(enum.StrEnum):
    """Compression of bodies."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


@attrs.frozen
class HttpSettings:
    """Settings of the sink ``http``.

    Attributes:
        url: Address to which batches are sent.
        method: Request method.
        format: ``json``: an array of objects; ``lines``: one object per line (NDJSON).
        compression: Compression of bodies; the service must support it.
        headers: Additional headers of each request.
        token: Sent as ``Authorization: Bearer``.
        token_file: File with the token, instead of ``token``.
        user: Sent with the password as ``Authorization: Basic``.
        password: Password of the user.
        password_file: File with the password, instead of ``password``.
        ca_file: CA certificates for the service's certificate; those of the system if it is empty.
        check_url: Address of the health check with GET; if it is empty, ``url`` is checked with OPTIONS.
        timeout_s: Longest time of a request, response included, in seconds.
        max_in_flight: Most requests at once. With more than one their order is not defined.
    """

    url: Url = field(repr=False)
    method: Method = Method.POST
    format: Format = Format.JSON
    compression: Compression = Compression.NONE
    headers: Texts = field(factory=dict, repr=False)
    token: Text = field(default="", repr=False)
    token_file: File = ""
    user: Text = ""
    password: Text = field(default="", repr=False)
    password_file: File = ""
    ca_file: File = ""
    check_url: OptionalUrl = field(default="", repr=False)
    timeout_s: int = timeout_s()
    max_in_flight: int = field(default=1, metadata=within("batches", 1, 64))


def check(settings: HttpSettings) -> tuple[str, ...]:
    """Problems of settings that are valid each by itself."""
    problems = [
        *check_secret("token", settings.token, settings.token_file),
        *check_secret("password", settings.password, settings.password_file),
    ]
    has_token = bool(settings.token or settings.token_file)
    if has_token and settings.user:
        problems.append("user and token are both given; a request can carry one of them")
    if (settings.password or settings.password_file) and not settings.user:
        problems.append("password is given without a user; give user too, or a token instead")
    if ":" in settings.user:
        problems.append(f"user = {settings.user!r} has a colon, which HTTP does not allow in a user name")
    if settings.ca_file and not settings.url.startswith("https:"):
        problems.append("ca_file is given, but url is not https")
    for name, value in settings.headers.items():
        # The value may be a secret, so it is not shown.
        if _HEADER_NAME.fullmatch(name) is None:
            problems.append(f"headers has the name {name!a}, which is not a valid header name")
        elif name.lower() in OWN_HEADERS:
            problems.append(f"headers has {name}, which the sink sets itself; leave it out")
        elif _HEADER_VALUE.fullmatch(value) is None:
            problems.append(f"headers.{name} has characters that are not allowed in a header; use printable ASCII")
        elif name.lower() == "authorization" and (has_token or settings.user):
            problems.append("headers has Authorization, and user or token is given as well; give one of them")
    return tuple(problems)
