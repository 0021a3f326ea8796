"""Why a message goes to a client."""

from __future__ import annotations

import enum


class Origin(enum.IntEnum):
    """Why a message goes to a client; it decides what happens to the message when the connection ends.

    The numbers are stored.
    """

    SUBSCRIPTION = 0
    """It matched a subscription of the session: sent again if it was under way, and never twice at QoS 2."""

    RETAINED = 1
    """It was retained when the client subscribed: sent again, if it is still retained."""

    GROUP = 2
    """Delivered to a member of a shared subscription: at QoS 1 another member gets it, at QoS 2 only this one."""

    REPLAY = 3
    """It was requested by a replay; nothing of a replay is stored in the session."""
