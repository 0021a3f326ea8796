"""What a sink says when it does not take a batch. Errors of the libraries behind sinks are turned into these."""

from __future__ import annotations

import os

import attrs


class SinkError(Exception):
    """What all errors of sinks have in common. The message names the sink's address and what it answered."""


class SinkUnavailableError(SinkError):
    """An outage: the sink cannot be reached, does not answer, or answers that it cannot now, or not to us.

    Whether it took the batch, a part of it, or nothing is not known. No record is to blame, so the same batch is
    written again when the sink is back.

    Attributes:
        retry_after_s: How long the sink asks to be left alone, if it says so.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BatchRefusedError(SinkError):
    """The sink answered, and took nothing of the batch because of something in it.

    Attributes:
        index: The row that is to blame, from 0; None if the sink does not say.
    """

    def __init__(self, message: str, *, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


class UnwritableRowError(ValueError):
    """A row has a value that the sink's format cannot express; the sink refuses the batch for it.

    Attributes:
        index: Its place among the rows, from 0.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


@attrs.frozen(slots=True)
class Refusal:
    """One row that was refused.

    Attributes:
        index: Its place in the batch, from 0.
        reason: What the sink said of it, in one line.
    """

    index: int
    reason: str


class RowsRefusedError(SinkError):
    """The sink refused some rows of the batch, and took all others for good.

    Not for a sink that keeps a position: that would be behind rows which nobody has yet.

    Attributes:
        refusals: At least one, by index.
    """

    def __init__(self, message: str, refusals: tuple[Refusal, ...]) -> None:
        super().__init__(message)
        self.refusals = refusals


class DriverFencedError(SinkError):
    """The sink has seen a later driver of this queue, so this one must let go of the queue. Nothing was taken.

    What `shards.errors.StaleEpochError` is for a producer of a shard, this is for a driver and its sink.
    """


def innermost_reason(error: BaseException) -> str:
    """The innermost cause that has words.

    Errors of TLS and of the system come wrapped, by trio and by clients, also in a group with one for each address.
    """
    words = ""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        if isinstance(cause, ConnectionError) and cause.errno:
            # trio puts the address in front.
            words = os.strerror(cause.errno)
        else:
            words = getattr(cause, "strerror", None) or str(cause) or words
        cause = cause.__cause__ or cause.__context__
    return words or type(error).__name__
