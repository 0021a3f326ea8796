"""Errors of sessions, in addition to those of the store (`broker_adapter.errors`)."""

from __future__ import annotations


class SessionError(Exception):
    """Root of the errors of this package."""


class SessionTakenOverError(SessionError):
    """The session was taken over by another connection, at this or another broker; this connection must end."""


class StoreUnavailableError(SessionError):
    """The store did not answer in time, so no session could be opened. The client may try again."""


class ClientGoneError(SessionError):
    """The client may have closed this connection and be connected elsewhere: its session was not opened."""


class SessionOfAnotherUserError(SessionError):
    """The session of this client identifier belongs to another user; it is unchanged."""


class BrokerReplacedError(SessionError):
    """Another process runs under the same broker id; this one must stop."""
