"""Errors of sinks. Errors of the libraries that sinks use are converted to these."""

from __future__ import annotations

import os

import attrs


class SinkError(Exception):
    """Base class of the errors of sinks. The message has the sink's address and its answer."""


class SinkUnavailableError(SinkError):
    """An outage: the sink cannot be reached, does not answer, or answers that it cannot accept anything now.

    Whether it took the batch, a part of it, or nothing is unknown. No record is the cause, so the same batch is written
    again when the sink is back.

    Attributes:
        retry_after_s: The wait that the sink asks for, in seconds; None if it does not.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BatchRefusedError(SinkError):
    """The sink answered, and took nothing of the batch because of an error in the batch.

    Attributes:
        index: The row with the error, from 0; None if the sink does not say.
    """

    def __init__(self, message: str, *, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


class UnwritableRowError(ValueError):
    """A row has a value that the sink's format cannot express, so the sink refuses the batch.

    Attributes:
        index: Its index among the rows, from 0.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


@attrs.frozen(slots=True)
class Refusal:
    """One row that was refused.

    Attributes:
        index: Its index in the batch, from 0.
        reason: Error text of the sink, in one line.
    """

    index: int
    reason: str


class RowsRefusedError(SinkError):
    """The sink refused some rows of the batch, and accepted all others permanently.

    Not for a sink that keeps a position: its position would be after rows that were not stored anywhere.

    Attributes:
        refusals: At least one, by index.
    """

    def __init__(self, message: str, refusals: tuple[Refusal, ...]) -> None:
        super().__init__(message)
        self.refusals = refusals


class DriverFencedError(SinkError):
    """The sink knows a later driver of this queue, so this driver has to stop. Nothing was taken.

    It corresponds to `shards.errors.StaleEpochError`, which a producer of a shard gets.
    """


def innermost_reason(error: BaseException) -> str:
    """The text of the innermost cause that has one.

    Errors of TLS and of the system are wrapped by trio and by client libraries, also in a group with one per address.
    """
    words = ""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        if isinstance(cause, ConnectionError) and cause.errno:
            # trio puts the address before the text.
            words = os.strerror(cause.errno)
        else:
            words = getattr(cause, "strerror", None) or str(cause) or words
        cause = cause.__cause__ or cause.__context__
    return words or type(error).__name__
