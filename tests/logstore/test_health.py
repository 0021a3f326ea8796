"""When a log store is said to be in trouble: by what became of the requests, under a clock that the test moves."""

from __future__ import annotations

import math
from typing import Final

import pytest

from journal.logstore import Created
from journal.logstore.errors import (
    LogStoreError,
    StoreCredentialsError,
    StoreFullError,
    StoreUnreachableError,
    UnknownOutcomeError,
)
from journal.logstore.health import FAILING_S, SILENT_S, RequestHealth, WatchedLogStore
from journal.logstore.stores.memory import MemoryLogStore
from journal.server.cluster.takeover import SILENT_S as OWNER_SILENT_S

REPEATED_S: Final = 2.0
"""Requests are repeated after this time at the latest, also on a machine that is busy."""


class Requests:
    """Requests that succeed and fail when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.health = RequestHealth("no read has succeeded", lambda: self.now)

    def succeed(self) -> None:
        with self.health.request():
            pass

    def fail(self, error: LogStoreError, took_s: float = 0.0) -> None:
        with pytest.raises(LogStoreError), self.health.request():
            self.now += took_s
            raise error


def test_single_failures_are_no_trouble() -> None:
    requests = Requests()
    for _ in range(10):
        requests.fail(UnknownOutcomeError("503"))
        requests.now += FAILING_S / 2
        requests.succeed()
        assert requests.health.trouble is None


@pytest.mark.parametrize(
    ("kind", "way_out"),
    [
        (UnknownOutcomeError, "see that it runs"),
        (StoreUnreachableError, "this machine reaches it"),
        (StoreCredentialsError, "make the credentials of this server valid there"),
        (StoreFullError, "free space there, or raise its quota"),
    ],
)
def test_failures_without_a_success_between_them_are_told_with_the_last_reason_and_the_way_out(
    kind: type[LogStoreError], way_out: str
) -> None:
    requests = Requests()
    requests.fail(UnknownOutcomeError("the first reason"))
    assert requests.health.trouble is None
    requests.now += FAILING_S
    requests.fail(kind("the last reason"))
    trouble = requests.health.trouble
    assert trouble is not None
    assert trouble.code == kind.code
    assert str(trouble).startswith("no read has succeeded for 2 s: the last reason; ")
    assert way_out in str(trouble)
    assert "reason" not in trouble.summary
    requests.succeed()
    assert requests.health.trouble is None


def test_the_time_that_a_failed_request_took_counts() -> None:
    requests = Requests()
    requests.fail(UnknownOutcomeError("no answer in time"), took_s=10)
    trouble = requests.health.trouble
    assert trouble is not None
    assert trouble.since_s == 10


def test_requests_that_are_not_answered_are_trouble_before_they_fail() -> None:
    requests = Requests()
    requests.succeed()
    with requests.health.request():
        requests.now += SILENT_S - 0.1
        assert requests.health.trouble is None
        requests.now += 0.1
        trouble = requests.health.trouble
        assert trouble is not None
        assert "it did not answer yet" in str(trouble)
    assert requests.health.trouble is None


def test_one_slow_request_beside_others_that_succeed_is_no_trouble() -> None:
    requests = Requests()
    with requests.health.request():
        for _ in range(10):
            requests.now += SILENT_S / 2
            requests.succeed()
            assert requests.health.trouble is None


def test_a_failure_of_long_ago_that_no_request_followed_is_no_trouble_now() -> None:
    requests = Requests()
    requests.fail(StoreFullError("full"))
    requests.now += 3600
    assert requests.health.trouble is None
    with requests.health.request():
        assert requests.health.trouble is None
        requests.now += SILENT_S / 2
    requests.fail(StoreFullError("full"))
    assert requests.health.trouble is None, "it may be the first one of its kind"


@pytest.mark.parametrize("took_s", [0.0, FAILING_S])
def test_a_failure_that_no_request_follows_is_no_trouble_for_so_long_that_the_owner_seems_to_be_lost(
    took_s: float,
) -> None:
    """For 30 s after a refused checkpoint an owner without appends did not say that it owned the store."""
    requests = Requests()
    requests.fail(StoreFullError("full"), took_s)
    seconds = 0.0
    for _ in range(100):
        requests.now += 0.1
        seconds += 0.1 * (requests.health.trouble is not None)
    assert seconds < OWNER_SILENT_S - 0.2
    assert requests.health.trouble is None


def test_failures_are_trouble_as_long_as_each_is_followed_by_another_attempt_however_long_that_takes() -> None:
    requests = Requests()
    for _ in range(10):
        requests.fail(UnknownOutcomeError("no answer in time"), took_s=10)
        for _ in range(int(REPEATED_S / 0.1)):
            requests.now += 0.1
            assert requests.health.trouble is not None
        with pytest.raises(UnknownOutcomeError), requests.health.request():
            for _ in range(100):
                requests.now += 0.1
                trouble = requests.health.trouble
                assert trouble is not None
                assert "no answer in time" in str(trouble)
            raise UnknownOutcomeError("no answer in time")
        assert requests.now - 100.0 == pytest.approx(trouble.since_s)


def test_of_a_request_that_may_take_long_only_its_failure_is_noted_and_until_it_succeeds() -> None:
    """The fetch of a large file takes minutes. If it is refused, it is tried again until it succeeds."""
    now = [0.0]
    health = RequestHealth("no file has come", lambda: now[0], lasts_s=math.inf)
    with pytest.raises(StoreCredentialsError), health.request(is_long=True):
        now[0] += 60
        assert health.trouble is None
        raise StoreCredentialsError("refused")
    for _ in range(2):
        now[0] += 3600
        assert health.trouble is not None
    with health.request(is_long=True):
        assert health.trouble is not None
    assert health.trouble is None


def test_an_error_of_the_program_is_neither_a_success_nor_a_failure_of_the_store() -> None:
    requests = Requests()
    with pytest.raises(ValueError, match="no key"), requests.health.request():
        raise ValueError("no key")
    requests.now += 60
    assert requests.health.trouble is None


def test_reads_and_writes_are_noted_apart() -> None:
    class Full(MemoryLogStore):
        def create(self, key: str, data: bytes) -> Created:
            raise StoreFullError(f"no space for {key}")

    times = [0.0]
    store = WatchedLogStore(Full(), lambda: times[-1])
    for now in (1.0, 1.0 + FAILING_S):
        times.append(now)
        with pytest.raises(StoreFullError):
            store.create("root/a", b"")
        assert store.get("root/a") is None
        assert store.list_after("root/a") == []
        store.delete("root/a")
    assert str(store.writes.trouble).startswith(
        "no write to the log store has succeeded for 2 s: no space for root/a; "
    )
    assert store.reads.trouble is None
    store.close()
