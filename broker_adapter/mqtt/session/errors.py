"""What goes wrong with sessions, beside what the store itself refuses (`broker_adapter.errors`)."""

from __future__ import annotations


class SessionError(Exception):
    """Root of the errors of this package."""


class SessionTakenOverError(SessionError):
    """The session belongs to another connection by now, here or at another broker; this one must end."""


class StoreUnavailableError(SessionError):
    """The store did not answer in time, so no session could be opened. The client may try again."""


class ClientGoneError(SessionError):
    """The client may have given its connection up, and be elsewhere: its session was not opened. It may try again."""


class BrokerReplacedError(SessionError):
    """Another process runs as a broker of the same id; this one must stop."""
