"""A received PUBLISH on its way to its outcome."""

from __future__ import annotations

from typing import Final

import msgspec

from broker_adapter.mqtt.model.message import DelayedPublish, Message
from broker_adapter.mqtt_codec.reason_codes import ReasonCode
from broker_adapter.results import PendingAppend

OVERHEAD_BYTES: Final = 256


class Received(msgspec.Struct, eq=False, gc=False):
    """A received PUBLISH and its outcome.

    Attributes:
        message: None if it is not to be stored.
        packet_id: Packet identifier; 0 at QoS 0.
        due: When it is to be published; None for at once.
        reason_code: The outcome, once it is known.
        is_repeated: It is appended for the second time, because its shard had been deleted.
        unplaced_count: Number of its shards that the store has no room for yet.
    """

    message: Message | None
    packet_id: int
    qos: int
    due: DelayedPublish | None = None
    reason_code: ReasonCode | None = None
    pending: PendingAppend | None = None
    is_repeated: bool = False
    unplaced_count: int = 0

    @property
    def size_bytes(self) -> int:
        """Approximate bytes that it occupies while it waits."""
        return OVERHEAD_BYTES + (len(self.message.payload) if self.message is not None else 0)


def needs_commit(received: Received) -> bool:
    """Whether a message is stored together with something else: a packet identifier, a retained value, a timer."""
    message = received.message
    return received.qos == 2 or received.due is not None or (message is not None and message.retain)
