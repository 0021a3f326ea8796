"""Buckets that fill, accounts that count, and who is refused what."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from journal.access.quotas import ALL_TOGETHER, Bucket, Quota, Quotas
from journal.protocol.errors import QuotaExceededError


@given(st.integers(1, 1000), st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5000)), max_size=30))
def test_a_client_that_waits_as_requested_never_gets_more_than_the_rate_and_one_burst(
    per_s: int, spent: list[tuple[float, float]]
) -> None:
    bucket, now, total = Bucket(per_s, 0.0), 0.0, 0.0
    for pause_s, amount in spent:
        now += pause_s + bucket.wait_s(now + pause_s)
        assert total <= per_s * (now + 1) + 1e-6
        amount = min(amount, 50 * per_s)
        bucket.spend(amount, now)
        total += amount


def test_a_debt_is_never_deeper_than_a_minute() -> None:
    bucket = Bucket(10, 0.0)
    bucket.spend(1e9, 0.0)
    assert bucket.wait_s(0.0) == 60.0
    assert bucket.wait_s(60.0) == 0.0


def test_each_has_its_own_or_the_common_quota_and_all_share_one() -> None:
    quotas = Quotas(
        [Quota(connections=1), Quota("big", connections=2), Quota(ALL_TOGETHER, connections=3)], clock=lambda: 0.0
    )
    small, *big = [quotas.connect("small"), quotas.connect("big"), quotas.connect("big")]
    assert small is not None
    with pytest.raises(QuotaExceededError, match=r"'small' have 1 connections, and quotas.connections allows"):
        quotas.connect("small")
    with pytest.raises(QuotaExceededError, match="'big'"):
        quotas.connect("big")
    with pytest.raises(QuotaExceededError, match="all principals together have 3"):
        quotas.connect("other")
    quotas.disconnect(small)
    assert quotas.connect("other") is not None
    assert [meter is not None for meter in big] == [True, True]


def test_a_principal_that_is_called_like_all_together_is_not_all_together() -> None:
    quotas = Quotas([Quota(connections=1), Quota(ALL_TOGETHER, connections=5)], clock=lambda: 0.0)
    quotas.connect("*")
    with pytest.raises(QuotaExceededError, match=r"principal '\*' have 1"):
        quotas.connect("*")
    quotas.connect("x")


def test_without_a_quota_nothing_is_counted() -> None:
    assert Quotas([]).connect("x") is None
    assert not Quotas([]).measure
    assert Quotas([Quota("y", requests_per_s=1)]).connect("x") is None


async def test_who_overspends_waits_and_others_do_not(autojump_clock: trio.testing.MockClock) -> None:
    quotas = Quotas([Quota(requests_per_s=10, bytes_per_s=1000)])
    greedy, modest = quotas.connect("greedy"), quotas.connect("modest")
    assert greedy is not None
    assert modest is not None
    greedy.spend(5, 5000)
    assert greedy.has_overspent
    assert not modest.has_overspent
    started = trio.current_time()
    await modest.wait()
    assert trio.current_time() == started
    await greedy.wait()
    assert trio.current_time() == started + 4
    assert not greedy.has_overspent
    greedy.spend(1000, 0)
    await greedy.wait()
    assert trio.current_time() == started + 9, "it is heard every five seconds all the same"


def test_shards_and_bytes_are_bounded_where_they_count() -> None:
    quotas = Quotas([Quota(topics=("of/%u/#",), shards=2, stored_bytes=100)], clock=lambda: 0.0)
    meter = quotas.connect("anna")
    assert meter is not None
    (account,) = meter.accounts
    for _ in range(2):
        meter.check_new_shard("of/anna/x")
        meter.count_shard("of/anna/x", 1)
        meter.count_shard("of/bob/x", 1)
    with pytest.raises(QuotaExceededError, match=r"have 2 shards in of/anna/#, and quotas.shards allows 2"):
        meter.check_new_shard("of/anna/x")
    meter.check_new_shard("elsewhere")
    account.stored_bytes = 100
    with pytest.raises(QuotaExceededError, match=r"have 100 B in of/anna/#, and quotas.stored_bytes allows 100 B"):
        meter.check_room("of/anna/x")
    meter.check_room("elsewhere")
    assert QuotaExceededError.retriable
