"""How a connection ends, what is counted then, and how its stream is closed."""

from __future__ import annotations

from typing import Final

import attrs
import trio

from broker_adapter.mqtt.model.statistics import BrokerStatistics, EndReason
from broker_adapter.mqtt.transport.streams import PEER_GONE


@attrs.frozen(slots=True)
class Ending:
    """How a connection ends.

    Attributes:
        publish_will: False only if the client sent a DISCONNECT without its will, or the session was taken over.
        expiry_interval_s: New session expiry interval, where DISCONNECT changed it.
        settles: Wait for the outcome of what the client published before.
        last_bytes: Sent when that is over, with nothing behind them.
    """

    publish_will: bool = True
    expiry_interval_s: int | None = None
    settles: bool = True
    last_bytes: bytes = b""


LOST: Final = Ending()
TAKEN_OVER: Final = Ending(publish_will=False, settles=False)
UNSETTLED: Final = Ending(settles=False)


def count_end(statistics: BrokerStatistics, why: EndReason | None, *, is_accepted: bool) -> None:
    """Count an end that the client did not cause; before its CONNECT was accepted it counts as a refusal."""
    if why is None:
        return
    if is_accepted:
        statistics.ended[why] += 1
    elif why == "keep_alive":
        statistics.refused["no_connect"] += 1
    elif why == "protocol":
        statistics.refused["protocol"] += 1


async def close_stream(stream: trio.abc.Stream, closed: trio.Event) -> None:
    """Close a stream, and set the event when that is done."""
    try:
        await stream.aclose()
    except PEER_GONE:
        # The peer had closed it already.
        return
    finally:
        closed.set()
