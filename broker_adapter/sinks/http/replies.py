"""What a response of a web service means for a batch. Pure: status, headers and body in, an error or None out.

Only a response that reports an error in the request refuses the batch. All other responses that are not a success are
outages, also those caused by a wrong setting: no record becomes a dead letter because a token has expired.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import attrs
import msgspec

from broker_adapter.sinks.errors import (
    BatchRefusedError,
    Refusal,
    RowsRefusedError,
    SinkError,
    SinkUnavailableError,
)

MAX_BODY_BYTES: Final = 1 << 20
"""Most bytes that are read of a response body."""

MAX_RETRY_AFTER_S: Final = 3_600.0

_MULTI_STATUS: Final = 207
_BLAMES_WHAT_WAS_SENT: Final = frozenset({400, 413, 422})
_ADVICE: Final = {
    401: "give the sink other credentials",
    403: "allow these credentials to write, or give others",
    404: "set url to the address that accepts batches",
    405: "set method to one that the service accepts",
    407: "the proxy requires credentials, which the sink does not support",
    409: "an earlier attempt with the same batch may still be in progress",
    410: "set url to the address that accepts batches",
    415: "set format and compression to those that the service accepts",
    431: "set fewer headers",
}
_CHECK_OUTAGES: Final = frozenset({401, 407, 408, 425, 429, 502, 503, 504})
_SHOWN_CHARACTERS: Final = 200


@attrs.frozen(slots=True)
class Reply:
    """A response of the service.

    Attributes:
        status: 100 to 599.
        retry_after: The header, empty without one.
        location: The header, empty without one.
        body: At most `MAX_BODY_BYTES` of it, not decoded.
        encoding: The header Content-Encoding, empty without one.
    """

    status: int
    retry_after: str = ""
    location: str = ""
    body: bytes = b""
    encoding: str = ""

    @property
    def is_encoded(self) -> bool:
        """Whether the body is compressed, which the sink does not accept: its decoded size has no limit."""
        return self.encoding.strip().lower() not in ("", "identity")


class _RefusedRow(msgspec.Struct):
    index: int
    reason: str = ""


class _PartlyTaken(msgspec.Struct):
    refused: list[_RefusedRow]


_read_partly_taken: Final = msgspec.json.Decoder(_PartlyTaken).decode


def error_of(reply: Reply, address: str, sent: Sequence[int], now: datetime) -> SinkError | None:
    """The error that a response to a batch means; None if the batch was taken.

    Args:
        address: Address of the service, for messages.
        sent: Index in the batch of each row that was sent.
        now: Present time, for ``Retry-After`` as a date.
    """
    if reply.status == _MULTI_STATUS:
        return _partly_taken(reply, address, sent)
    if 200 <= reply.status < 300:
        return None
    if reply.status in _BLAMES_WHAT_WAS_SENT:
        return BatchRefusedError(f"{address} refused the batch with status {reply.status}{_excerpt(reply)}")
    return _outage(reply, address, now)


def check_error_of(reply: Reply, address: str, now: datetime, *, must_succeed: bool) -> SinkUnavailableError | None:
    """The error that a response to a health check means; None if the service is healthy.

    Args:
        must_succeed: The check has an address of its own, so any failure counts. Otherwise it is an OPTIONS request,
            which many services do not support: only a response that batches would get, too, is an outage.
    """
    if 200 <= reply.status < 300 or (not must_succeed and reply.status not in _CHECK_OUTAGES):
        return None
    return _outage(reply, address, now)


def retry_after_s(text: str, now: datetime) -> float | None:
    """Parse ``Retry-After``: seconds or a date; the result is at most an hour, in seconds. None if it is not valid."""
    if re.fullmatch(r"[0-9]{1,10}", text):
        wait_s = float(text)
    else:
        try:
            at = parsedate_to_datetime(text)
        except (ValueError, OverflowError, TypeError, IndexError):
            # The parser of the standard library raises all of these for texts that are not dates.
            return None
        # A date with the zone "-0000" is parsed as one without a zone; HTTP dates are always UTC.
        wait_s = (at.replace(tzinfo=at.tzinfo or UTC) - now).total_seconds()
    return min(max(wait_s, 0.0), MAX_RETRY_AFTER_S)


def _partly_taken(reply: Reply, address: str, sent: Sequence[int]) -> SinkError | None:
    if reply.is_encoded:
        return SinkUnavailableError(
            f"{address} answered 207 with a body in Content-Encoding {_shown(reply.encoding)}; let it answer requests "
            f"with 'Accept-Encoding: identity' without compression"
        )
    try:
        found = _read_partly_taken(reply.body).refused
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return SinkUnavailableError(
            f'{address} answered 207 without a readable {{"refused": [{{"index": 0, "reason": ""}}]}}: {error}'
        )
    reasons = {each.index: _shown(each.reason) or "no reason given" for each in found}
    stray = [index for index in reasons if not 0 <= index < len(sent)]
    if stray:
        return SinkUnavailableError(
            f"{address} answered 207 and refuses row {stray[0]}, but it was sent rows 0 to {len(sent) - 1}"
        )
    if not reasons:
        return None
    refusals = tuple(Refusal(sent[index], reasons[index]) for index in sorted(reasons))
    return RowsRefusedError(f"{address} refused {len(refusals)} of {len(sent)} rows", refusals)


def _outage(reply: Reply, address: str, now: datetime) -> SinkUnavailableError:
    detail = _excerpt(reply)
    if 300 <= reply.status < 400:
        # Without what may be a secret in it.
        elsewhere = reply.location.partition("?")[0] or "elsewhere"
        detail = f": it redirects to {_shown(elsewhere)}; set url to that address, redirects are not followed"
    elif advice := _ADVICE.get(reply.status):
        detail += f"; {advice}"
    return SinkUnavailableError(
        f"{address} answered with status {reply.status}{detail}", retry_after_s=retry_after_s(reply.retry_after, now)
    )


def _excerpt(reply: Reply) -> str:
    if reply.is_encoded:
        return f" and a body in Content-Encoding {_shown(reply.encoding)}, which is not read"
    shown = _shown(reply.body[: 4 * _SHOWN_CHARACTERS].decode("utf-8", "replace"))
    return f": {shown}" if shown else ""


def _shown(text: str) -> str:
    """Text of a peer in one line, with limited length."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}..."
