"""The errors of log stores and of what is built on them.

A store maps every exception of its library to one of the first five. What an error says about the write decides what
may be done next: only `UnknownOutcomeError` leaves open whether the store has carried it out, or will.
"""

from __future__ import annotations

from typing import ClassVar, Final

from shards.errors import StorageError


class LogStoreError(StorageError):
    """Base class of the errors of this package.

    Attributes:
        way_out: What an operator does, as a sentence without a full stop; empty if the message says it.
    """

    code = "log_store"
    way_out: ClassVar[str] = ""


class UnknownOutcomeError(LogStoreError):
    """The store has not said whether it carried out the request. A create may have been applied, or may be later."""

    code = "log_store_unknown_outcome"
    retriable = True
    way_out = "see that it runs, and what its own log says"


class StoreUnreachableError(LogStoreError):
    """The request did not reach the store, and will not: no connection could be made."""

    code = "log_store_unreachable"
    retriable = True
    way_out = "see that it runs, and that this machine reaches it"


class StoreCredentialsError(LogStoreError):
    """The store refused the credentials, or does not allow this request with them. Nothing was changed."""

    code = "log_store_credentials"
    way_out = (
        "make the credentials of this server valid there again, with the right to read, write, list and delete, or "
        "start it again with others"
    )


class StoreFullError(LogStoreError):
    """The store has no space or quota left. Nothing was changed."""

    code = "log_store_full"
    retriable = True
    way_out = "free space there, or raise its quota"


class ForeignStoreError(LogStoreError):
    """What lies there was not made by this program, or belongs to another store."""

    code = "log_store_foreign"


class UnfitStoreError(LogStoreError):
    """The store does not do what a log needs of it, for example lets a second create replace the first."""

    code = "log_store_unfit"


class LogDamagedError(LogStoreError):
    """An object of the log is damaged or missing, or does not continue the one before it."""

    code = "log_damaged"


class StoreDeposedError(LogStoreError):
    """Another node owns the store, or is about to. This one must drop all that it holds of it.

    Attributes:
        epoch: The epoch that this node owned.
        by_epoch: The higher epoch, if it is known.
    """

    code = "log_store_deposed"

    def __init__(self, epoch: int, by_epoch: int | None = None) -> None:
        newer = "a newer epoch" if by_epoch is None else f"epoch {by_epoch}"
        super().__init__(f"epoch {epoch} no longer owns the store: {newer} does")
        self.epoch = epoch
        self.by_epoch = by_epoch


MAY_PASS: Final = (UnknownOutcomeError, StoreUnreachableError, StoreCredentialsError, StoreFullError)
"""The errors after which the same request may succeed later, without a change here. What has been started goes on
trying; a start is refused."""
