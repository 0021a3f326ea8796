"""Which logins are accepted, how often a client may try, and that checking passwords delays no other client."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from journal.access.authentication import Authentication, FailedAttempts
from journal.access.users import Cost, PasswordHash, Users
from tests.patience import PATIENCE_S

CHEAP = Cost(n=2, r=1, p=1)


@attrs.define(eq=False)
class CountedUsers(Users):
    """Counts checks and, if there is a gate, holds them up at it."""

    checks: int = 0
    most_at_once: int = 0
    gate: Callable[[], None] = lambda: None
    _running: int = 0
    _lock: threading.Lock = attrs.Factory(threading.Lock)

    def __attrs_post_init__(self) -> None:
        super().__init__({name: PasswordHash.of(name.encode(), CHEAP) for name in ("anna", "bob")})

    def check(self, name: str, password: bytes) -> bool:
        with self._lock:
            self.checks += 1
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
        self.gate()
        try:
            return super().check(name, password)
        finally:
            with self._lock:
                self._running -= 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_password_is_that_of_its_user_alone() -> None:
    authentication = Authentication(CountedUsers())
    assert await authentication.check("anna", b"anna", "10.0.0.1")
    assert not await authentication.check("anna", b"bob", "10.0.0.1")
    assert not await authentication.check("carl", b"carl", "10.0.0.1")


async def test_without_a_password_file_no_user_is_known() -> None:
    assert not await Authentication(None).check("anna", b"anna", "10.0.0.1")


async def test_the_event_loop_continues_and_two_are_checked_at_once() -> None:
    held = threading.Event()
    users = CountedUsers(gate=lambda: held.wait(10) or None)  # type: ignore[func-returns-value]
    authentication = Authentication(users)
    results: list[bool] = []

    async def check(number: int) -> None:
        results.append(await authentication.check("anna", b"anna", f"10.0.0.{number}"))

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(check, number)
        with trio.fail_after(PATIENCE_S):
            while users.checks < 2:
                await trio.lowlevel.checkpoint()
        assert not results
        held.set()
    assert results == [True] * 8
    assert users.most_at_once == 2


async def test_who_came_back_with_the_right_password_is_not_checked_again_until_it_changes() -> None:
    users = CountedUsers()
    authentication = Authentication(users)
    for _ in range(5):
        assert await authentication.check("anna", b"anna", "10.0.0.1")
    assert users.checks == 1
    assert not await authentication.check("anna", b"anna2", "10.0.0.1")

    changed = CountedUsers()
    changed._hashes["anna"] = PasswordHash.of(b"new", CHEAP)
    authentication.users = changed
    assert not await authentication.check("anna", b"anna", "10.0.0.1")
    assert await authentication.check("anna", b"new", "10.0.0.1")
    del changed._hashes["anna"]
    assert not await authentication.check("anna", b"new", "10.0.0.1")


async def test_a_client_that_guesses_has_to_wait_and_learns_nothing_meanwhile() -> None:
    users, clock = CountedUsers(), Clock()
    authentication = Authentication(users, clock)
    for _ in range(4):
        assert not await authentication.check("anna", b"wrong", "10.0.0.1")
    assert not await authentication.check("anna", b"anna", "10.0.0.1"), "not even the right password tells anything"
    assert (users.checks, authentication.refused_early) == (4, 1)
    # Others, and she herself from elsewhere, are not held up.
    assert await authentication.check("bob", b"bob", "10.0.0.1")
    assert await authentication.check("anna", b"anna", "10.0.0.2")
    clock.now += 1
    assert await authentication.check("anna", b"anna", "10.0.0.1")
    # It begins again after a success.
    assert not await authentication.check("anna", b"wrong", "10.0.0.1")
    assert await authentication.check("anna", b"anna", "10.0.0.1")


async def test_a_host_that_tries_many_names_has_to_wait_whatever_the_name() -> None:
    users, clock = CountedUsers(), Clock()
    authentication = Authentication(users, clock)
    for number in range(31):
        assert not await authentication.check(f"user{number}", b"wrong", "2001:db8::1")
    # Its neighbours in the network are most likely itself.
    assert not await authentication.check("anna", b"anna", "2001:db8::2:3:4")
    assert users.checks == 31
    assert await authentication.check("anna", b"anna", "2001:db8:0:1::1")


async def test_who_came_from_a_host_before_is_not_kept_out_by_what_others_try_from_there() -> None:
    """One forgotten device behind a gateway must not lock out all the others behind it, for as long as it tries."""
    users, clock = CountedUsers(), Clock()
    authentication = Authentication(users, clock)
    assert await authentication.check("anna", b"anna", "10.0.0.1")
    for _ in range(200):
        await authentication.check("forgotten", b"wrong", "10.0.0.1")
        await authentication.check("bob", b"wrong", "10.0.0.1")
        clock.now += 20
    assert not await authentication.check("bob", b"bob", "10.0.0.1")
    assert await authentication.check("anna", b"anna", "10.0.0.1")
    # Guesses at her own password are slowed down all the same.
    for _ in range(4):
        assert not await authentication.check("anna", b"guess", "10.0.0.1")
    assert not await authentication.check("anna", b"anna", "10.0.0.1")


async def test_invented_user_names_are_not_kept() -> None:
    class Name(str):
        """A name that shows whether it is referenced."""

        __slots__ = ("__weakref__",)

    authentication = Authentication(CountedUsers(), Clock())
    names = [Name(f"{number}" * 100_000) for number in range(3)]
    kept = [weakref.ref(name) for name in names]
    for name in names:
        assert not await authentication.check(name, b"wrong", "10.0.0.1")
    del name, names
    gc.collect()
    assert [each() for each in kept] == [None, None, None]


async def test_guesses_that_waited_together_do_not_all_count_as_free() -> None:
    users, clock = CountedUsers(), Clock()
    authentication = Authentication(users, clock)
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(authentication.check, "anna", b"wrong", "10.0.0.1")
    assert users.checks <= 5
    assert authentication.refused_early >= 45


@pytest.mark.parametrize("count", [1, 2, 10])
def test_waits_double_up_to_a_bound(count: int) -> None:
    attempts = FailedAttempts(free_failures=2, first_s=1, longest_s=8)
    now = 100.0
    waits = []
    for _ in range(count + 2):
        attempts.failed("x", now)
        wait = next(wait for wait in (0, 1, 2, 4, 8) if not attempts.must_wait("x", now + wait))
        waits.append(wait)
        now += wait
    assert waits == [0, 0, 1, 2, 4, 8, 8, 8, 8, 8, 8, 8][: count + 2]


def test_who_kept_still_for_long_begins_anew() -> None:
    attempts = FailedAttempts(free_failures=0, first_s=1, longest_s=8)
    for now in (0.0, 1.0, 3.0):
        attempts.failed("x", now)
    assert attempts.must_wait("x", 6.9)
    attempts.failed("x", 15.1)
    assert not attempts.must_wait("x", 16.1)


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans())))
def test_memory_is_bounded_and_the_latest_are_remembered(tries: list[tuple[int, bool]]) -> None:
    attempts = FailedAttempts(free_failures=0, first_s=1, longest_s=8, max_entries=5)
    latest: list[int] = []
    for who, failed in tries:
        latest = [each for each in latest if each != who]
        if failed:
            attempts.failed(who, 0.0)
            latest = [*latest, who][-5:]
        else:
            attempts.succeeded(who)
        assert len(attempts) == len(latest)
        assert {each for each in range(31) if attempts.must_wait(each, 0.5)} == set(latest)
