"""Defects put back into the algorithms. The simulation must find each of them.

Some were in other systems that keep a log in an object store; the others are what the algorithms would do without one
of their precautions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import pytest

from journal.logstore import collection, ownership, reading, settling, writing
from journal.logstore.errors import StoreUnreachableError, UnknownOutcomeError
from journal.logstore.keys import Position, before_slot, number_of
from journal.logstore.ownership import Member
from journal.logstore.settling import Settlement, settle_list
from journal.logstore.steps import Steps, create
from journal.logstore.store import Created
from journal.logstore.writing import SlotWrite, SlotWriter
from tests.logstore import model

Patch = pytest.MonkeyPatch
DEFECTS: Final[dict[str, Callable[[Patch], None]]] = {}


def _defect(name: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def register(put: Callable[[Patch], None]) -> Callable[[Patch], None]:
        DEFECTS[name] = put
        return put

    return register


def _first_answer(key: str, data: bytes) -> Steps[Settlement]:
    """A create that is not repeated when its outcome is unknown."""
    while True:
        try:
            return (yield from settling.settle_create(key, data, 1))
        except StoreUnreachableError:
            continue


def _answer(value: Any) -> Callable[..., Steps[Any]]:
    """A function like those of the algorithms, that makes no request."""

    def steps(*_: Any) -> Steps[Any]:
        return value
        yield

    return steps


@_defect("fences are collected like slots, and a sleeping writer does not meet them (SlateDB 352, 1622)")
def _(patch: Patch) -> None:
    def is_slot(*_: Any) -> Steps[bool]:
        return True
        yield

    patch.setattr(collection, "_is_slot", is_slot)


@_defect("a fence in the place of a collected slot is taken for one (SlateDB 1682)")
def _(patch: Patch) -> None:
    patch.setattr(ownership, "_newer_checkpoint", _answer(None))


@_defect("a reader takes a fence in the place of a collected slot for the end of an epoch")
def _(patch: Patch) -> None:
    patch.setattr(reading.LogReader, "_restart_at_fence", _answer(None))


@_defect("claims are not looked at again after the fences")
def _(patch: Patch) -> None:
    patch.setattr(ownership, "check_owned", _answer(None))


@_defect("nothing is fenced")
def _(patch: Patch) -> None:
    patch.setattr(ownership, "_close_earlier", _answer(None))


@_defect("only the epoch before is fenced")
def _(patch: Patch) -> None:
    patch.setattr(ownership, "_has_begun", _answer(True))


@_defect("the fence is placed after the last slot, and slots that are under way can still fill the gap before it")
def _(patch: Patch) -> None:
    def after_last(member: Member, start: Position, window: int) -> Steps[Position]:
        keys = yield from settle_list(before_slot(member.root, start))
        last = max((slot for key in keys if (slot := number_of(key)) is not None), default=start.slot - 1)
        return attrs.evolve(start, slot=last + 1)

    patch.setattr(ownership, "_first_free", after_last)


@_defect("slots are acknowledged before those before them are known")
def _(patch: Patch) -> None:
    def settle(writer: SlotWriter, position: Position, is_ours: bool) -> list[SlotWrite]:
        write, _ = writer._under_way.pop(position)
        writer.is_fenced = writer.is_fenced or not is_ours
        writer.acknowledged = max(writer.acknowledged, attrs.evolve(position, slot=position.slot + 1))
        return [write] if is_ours else []

    patch.setattr(writing.SlotWriter, "settle", settle)


@_defect("a write whose answer was lost is acknowledged")
def _(patch: Patch) -> None:
    def settle_create(key: str, data: bytes) -> Steps[Settlement]:
        try:
            return (yield from _first_answer(key, data))
        except UnknownOutcomeError:
            return Settlement(True, data)

    patch.setattr(model, "settle_create", settle_create)


@_defect("an object that exists is taken for one's own after an unknown outcome, without reading it")
def _(patch: Patch) -> None:
    def settle_create(key: str, data: bytes) -> Steps[Settlement]:
        is_unknown = False
        while True:
            try:
                if (yield from create(key, data)) is Created.OURS or is_unknown:
                    return Settlement(True, data)
            except model.LogStoreError:
                is_unknown = True
                continue
            return (yield from settling.settle_create(key, data))

    patch.setattr(model, "settle_create", settle_create)


@_defect("a write with an unknown outcome is sent again as another slot")
def _(patch: Patch) -> None:
    advance = model.Owner._advance_writes

    def resend(owner: model.Owner) -> None:
        try:
            advance(owner)
        except UnknownOutcomeError:
            assert owner.writer is not None
            position = next(iter(owner.writes))
            write, _ = owner.writes.pop(position)
            owner.writer._under_way.clear()
            owner.writes.clear()
            data = write.data[model.HEADER_BYTES :]
            owner.writer._next_lsn = owner.next_lsn
            again = owner.writer.prepare(data, owner.next_lsn + 1, owner.world.nonce())
            owner.writes[again.position] = again, model.Task(settling.settle_create(again.key, again.data))

    patch.setattr(model, "settle_create", _first_answer)
    patch.setattr(model.Owner, "_advance_writes", resend)
