"""How far a follower is behind the owner of its store, as it tells in its metrics."""

from __future__ import annotations

import attrs
import pytest

from journal.engine import Addresses, Claim
from journal.server.cluster import membership
from journal.server.cluster.liveness import Life, Seen
from journal.server.cluster.membership import Membership, SeenOwner

ME = "aa" * 16
OTHER = Claim(3, "bb" * 16, Addresses("b:7420", "b:7422"))


@attrs.define
class Log:
    """What a membership needs of a log."""

    claim: Claim = OTHER
    epoch: int | None = None
    next_lsn: int = 1


@attrs.define
class Answers:
    """What the owner answers."""

    seen: Seen = attrs.field(factory=lambda: Seen(Life.ALIVE, 100))

    async def ask(self, address: str, server_id: str, epoch: int, *, encrypted: bool, follows: bool) -> Seen:
        assert follows
        return self.seen


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    found = Answers()
    monkeypatch.setattr(membership, "ask", found.ask)
    return found


async def test_a_follower_tells_how_many_entries_of_the_owner_it_has_not(answers: Answers) -> None:
    log, owner = Log(next_lsn=41), SeenOwner()
    member = Membership(ME, log, owner, "memory", encrypted=False)  # type: ignore[arg-type]
    assert member.lag() is None, "the owner has not been asked yet"
    assert await owner.ask(OTHER) is Life.ALIVE
    assert member.lag() == 60
    log.next_lsn = 101
    assert member.lag() == 0
    log.next_lsn = 151
    assert member.lag() == 0, "it has read what the owner has written since it was asked"


async def test_the_lag_stays_while_an_owner_is_silent(answers: Answers) -> None:
    log, owner = Log(next_lsn=41), SeenOwner()
    member = Membership(ME, log, owner, "memory", encrypted=False)  # type: ignore[arg-type]
    await owner.ask(OTHER)
    answers.seen = Seen(Life.SILENT)
    assert await owner.ask(OTHER) is Life.SILENT
    assert member.lag() == 60


async def test_what_a_former_owner_had_is_no_lag(answers: Answers) -> None:
    log, owner = Log(next_lsn=41), SeenOwner()
    member = Membership(ME, log, owner, "memory", encrypted=False)  # type: ignore[arg-type]
    await owner.ask(OTHER)
    log.claim = attrs.evolve(OTHER, epoch=4)
    assert member.lag() is None
    log.claim = Claim(5, ME, Addresses("a:7420", "a:7422"))
    assert member.lag() is None, "an owner has no lag"
