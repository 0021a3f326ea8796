"""Why a message goes to a client."""

from __future__ import annotations

import enum


class Origin(enum.IntEnum):
    """Why a message goes to a client; it decides what becomes of it when the connection ends.

    The numbers are stored.
    """

    SUBSCRIPTION = 0
    """It matched a subscription of the session: sent again, once it was under way, and never twice at QoS 2."""

    RETAINED = 1
    """It was retained when the client subscribed: sent again, if it still is."""

    GROUP = 2
    """A share of a group: at QoS 1 another member gets it, at QoS 2 it stays this client's."""

    REPLAY = 3
    """Asked for again by the client: replay leaves no trace in the session."""
