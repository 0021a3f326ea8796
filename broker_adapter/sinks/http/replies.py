"""What a reply of a web service says of a batch. Pure: status, headers and body in, an error or nothing out.

Only a reply that blames what was sent refuses it. All others that are no success are outages, also those for which a
setting is to blame: no record is set aside because a token has expired.
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
"""As much of a reply is read; nothing that is needed is longer."""

MAX_RETRY_AFTER_S: Final = 3_600.0

_MULTI_STATUS: Final = 207
_BLAMES_WHAT_WAS_SENT: Final = frozenset({400, 413, 422})
_ADVICE: Final = {
    401: "give the sink other credentials",
    403: "allow it to these credentials, or give others",
    404: "set url to where the service takes batches",
    405: "set method to what the service takes",
    407: "the proxy before the service wants credentials, which the sink has not",
    409: "an earlier try of the same batch may still be under way",
    410: "set url to where the service takes batches",
    415: "set format and compression to what the service takes",
    431: "set fewer headers",
}
_CHECK_OUTAGES: Final = frozenset({401, 407, 408, 425, 429, 502, 503, 504})
_SHOWN_CHARACTERS: Final = 200


@attrs.frozen(slots=True)
class Reply:
    """What came back.

    Attributes:
        status: 100 to 599.
        retry_after: The header, empty without one.
        location: The header, empty without one.
        body: At most `MAX_BODY_BYTES` of it.
    """

    status: int
    retry_after: str = ""
    location: str = ""
    body: bytes = b""


class _RefusedRow(msgspec.Struct):
    index: int
    reason: str = ""


class _PartlyTaken(msgspec.Struct):
    refused: list[_RefusedRow]


_read_partly_taken: Final = msgspec.json.Decoder(_PartlyTaken).decode


def error_of(reply: Reply, address: str, sent: Sequence[int], now: datetime) -> SinkError | None:
    """What a reply to a batch means; None if it was taken.

    Args:
        address: Names the service in messages.
        sent: Place in the batch of each row that was sent.
        now: For ``Retry-After`` as a date.
    """
    if reply.status == _MULTI_STATUS:
        return _partly_taken(reply, address, sent)
    if 200 <= reply.status < 300:
        return None
    if reply.status in _BLAMES_WHAT_WAS_SENT:
        return BatchRefusedError(f"{address} refused the batch with status {reply.status}{_told(reply.body)}")
    return _outage(reply, address, now)


def check_error_of(reply: Reply, address: str, now: datetime, *, must_succeed: bool) -> SinkUnavailableError | None:
    """What a reply to a question for its health means; None if the service is well.

    Args:
        must_succeed: It was asked at an address of its own for that. Otherwise it was asked with OPTIONS, which many
            services do not know: only what says that batches would meet the same is an outage.
    """
    if 200 <= reply.status < 300 or (not must_succeed and reply.status not in _CHECK_OUTAGES):
        return None
    return _outage(reply, address, now)


def retry_after_s(text: str, now: datetime) -> float | None:
    """Read ``Retry-After``: seconds or a date, at most an hour. None if there is nothing to be read."""
    if re.fullmatch(r"[0-9]{1,10}", text):
        wait_s = float(text)
    else:
        try:
            at = parsedate_to_datetime(text)
        except (ValueError, OverflowError, TypeError, IndexError):
            # The parser of the standard library raises all of these for texts that are no dates.
            return None
        # A date with the zone "-0000" is read as one without; HTTP has all in UTC.
        wait_s = (at.replace(tzinfo=at.tzinfo or UTC) - now).total_seconds()
    return min(max(wait_s, 0.0), MAX_RETRY_AFTER_S)


def _partly_taken(reply: Reply, address: str, sent: Sequence[int]) -> SinkError | None:
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
    told = _told(reply.body)
    if 300 <= reply.status < 400:
        # Without what may be a secret in it.
        elsewhere = reply.location.partition("?")[0] or "elsewhere"
        told = f": it points to {_shown(elsewhere)}; set url to where batches are taken, redirects are not followed"
    elif advice := _ADVICE.get(reply.status):
        told += f"; {advice}"
    return SinkUnavailableError(
        f"{address} answered with status {reply.status}{told}", retry_after_s=retry_after_s(reply.retry_after, now)
    )


def _told(body: bytes) -> str:
    shown = _shown(body[: 4 * _SHOWN_CHARACTERS].decode("utf-8", "replace"))
    return f": {shown}" if shown else ""


def _shown(text: str) -> str:
    """Text of a peer on one line, of bounded length."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}..."
