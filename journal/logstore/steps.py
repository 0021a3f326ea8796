"""The form of the algorithms of a log: generators that yield an operation and are sent its answer.

So they are independent of threads, event loops and clocks. `driver` carries the operations out on a `LogStore`; a
simulation carries them out in any order and with any outcome. An error of the store is thrown in where the operation
was yielded.
"""

from __future__ import annotations

import enum
from collections.abc import Generator
from typing import TypeAlias, TypeVar

import attrs

from journal.logstore.store import Created

_T = TypeVar("_T")


@attrs.frozen(slots=True)
class Create:
    """`LogStore.create`; answered by a `Created`."""

    key: str
    data: bytes


@attrs.frozen(slots=True)
class Get:
    """`LogStore.get`; answered by bytes or `None`."""

    key: str


@attrs.frozen(slots=True)
class ListAfter:
    """`LogStore.list_after`; answered by a list of keys."""

    key: str


@attrs.frozen(slots=True)
class Delete:
    """`LogStore.delete`; answered by `None`."""

    key: str


@attrs.frozen(slots=True)
class Pause:
    """Wait before the next attempt; answered by `Paused`.

    Attributes:
        failures: Number of attempts in a row that failed, 1 and up.
    """

    failures: int


class Paused(enum.Enum):
    """The answer to a pause."""

    GO_ON = "go on"
    GIVE_UP = "make no more attempts"


Operation: TypeAlias = Create | Get | ListAfter | Delete | Pause
Answer: TypeAlias = Created | bytes | list[str] | Paused | None
Steps: TypeAlias = Generator[Operation, Answer, _T]


def create(key: str, data: bytes) -> Steps[Created]:
    """One attempt to create an object."""
    answer = yield Create(key, data)
    assert isinstance(answer, Created)
    return answer


def get(key: str) -> Steps[bytes | None]:
    """One attempt to read an object."""
    answer = yield Get(key)
    assert answer is None or isinstance(answer, bytes)
    return answer


def list_after(key: str) -> Steps[list[str]]:
    """One attempt to list keys."""
    answer = yield ListAfter(key)
    assert isinstance(answer, list)
    return answer


def delete(key: str) -> Steps[None]:
    """One attempt to delete an object."""
    yield Delete(key)


def pause(failures: int) -> Steps[bool]:
    """Wait before the next attempt; returns whether there is to be one."""
    return (yield Pause(failures)) is not Paused.GIVE_UP
