"""An owner that reaches neither the log store nor its followers: it does not know whether it still is the owner."""

from __future__ import annotations

import signal
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from journal.client.opening import open_client
from journal.client.session_keeper import SessionTimes
from journal.engine import Claim, open_engine
from journal.engine.shared_log import log as log_module
from journal.engine.shared_log.isolation import FOLLOWED_S, ISOLATED_S, Isolation
from journal.logstore.errors import StoreUnreachableError
from journal.logstore.stores.memory import MemoryLogStore
from journal.server.cluster import takeover
from journal.server.cluster.liveness import FOLLOWS_HEADER, Life
from journal.server.cluster.membership import Membership
from shards.errors import LogUnavailableError
from shards.format.record import Record
from tests.cluster.servers import Server, running
from tests.cluster.test_follower_engine import CONFIG, FILE_MODE, Watch, append, log_of, values_in
from tests.cluster.test_follower_lag import ME, OTHER, Log
from tests.cluster.test_follower_troubles import Troubled
from tests.cluster.test_former_owners import IN_MEMORY, wait_until
from tests.cluster.test_real_stores import seaweed
from tests.logstore.faulty_proxy import Fault, all_meet, open_proxies
from tests.patience import PATIENCE_S


class Owner:
    """An owner under a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.isolation = Isolation(lambda: self.now)
        self.isolation.begin()

    def later(self, seconds: float) -> bool:
        """Whether it is isolated after a time."""
        self.now += seconds
        return self.isolation.error is not None


def test_an_owner_that_neither_the_log_store_nor_a_follower_answers_is_isolated_when_it_may_have_lost_the_store() -> (
    None
):
    owner = Owner()
    owner.isolation.followed()
    assert not owner.later(ISOLATED_S - 0.1)
    assert owner.later(0.1)
    assert owner.later(3600)
    assert ISOLATED_S <= takeover.SILENT_S


def test_a_follower_that_asks_has_not_taken_the_store_over() -> None:
    owner = Owner()
    for _ in range(100):
        owner.isolation.followed()
        assert not owner.later(ISOLATED_S - 0.1)
    assert owner.later(0.1)
    owner.isolation.followed()
    assert not owner.later(0)


def test_an_owner_that_has_read_the_claims_is_not_isolated() -> None:
    owner = Owner()
    owner.isolation.followed()
    for _ in range(100):
        began = owner.isolation.now()
        assert not owner.later(ISOLATED_S / 4)
        owner.isolation.owned(began)


def test_claims_that_were_asked_for_long_ago_prove_nothing() -> None:
    owner = Owner()
    owner.isolation.followed()
    began = owner.isolation.now()
    assert owner.later(60)
    owner.isolation.owned(began)
    assert owner.later(0)


def test_an_owner_without_followers_is_never_isolated() -> None:
    """Nothing would be won by a refusal."""
    owner = Owner()
    assert not owner.later(3600)
    owner.isolation.owned(owner.now)
    owner.isolation.followed()
    owner.now += FOLLOWED_S + 1
    owner.isolation.owned(owner.now)
    assert not owner.later(3600), "the follower was stopped before"
    owner.isolation.followed()
    owner.isolation.begin()
    assert not owner.later(3600), "it followed in an earlier epoch"


async def test_an_isolated_owner_refuses_appends_in_memory_mode_until_it_knows_that_it_is_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It acknowledged them for as long as it was cut off, while another server owned the store."""
    monkeypatch.setattr(log_module, "_LOOK_S", 0.05)
    cut_off = Troubled(MemoryLogStore())
    log, owner = log_of(cut_off, 1, Watch(takes_over=True)), Owner()
    log.isolation = owner.isolation
    async with open_engine(str(tmp_path / "a"), CONFIG, log=log) as engine:

        async def is_refused() -> bool:
            try:
                with trio.fail_after(PATIENCE_S / 2):
                    await append(engine, "a", b"0")
            except LogUnavailableError as error:
                assert "it is not known whether it still owns the store" in str(error)
                return True
            return False

        await engine.create_shard("a", IN_MEMORY)
        await engine.create_shard("b", FILE_MODE)
        # Offsets and lsns are reserved in the log.
        await append(engine, "a", b"first")
        cut_off.refuses = StoreUnreachableError
        await cut_off.wait_refused(1)
        owner.now += 3600
        assert not await is_refused(), "there is no other server"
        owner.isolation.followed()
        owner.now += ISOLATED_S
        cut_off.refuses = None
        await wait_until(lambda: owner.isolation.error is None)
        cut_off.refuses = StoreUnreachableError
        await cut_off.wait_refused(1)
        for _ in range(10):
            owner.isolation.followed()
            owner.now += ISOLATED_S - 0.1
            assert not await is_refused(), "the follower has not taken it over"
        owner.now += 0.1
        assert await is_refused()
        figures = engine.statistics().log
        assert figures is not None
        assert "Appends in memory mode are accepted again" in figures.isolation
        assert (await values_in(engine, "a"))[0] == b"first"
        cut_off.refuses = None
        await wait_until(lambda: owner.isolation.error is None)
        assert not await is_refused()
        await append(engine, "b", b"1")


@attrs.define
class AskedOwner:
    """Notes when it was asked. Something else asks it, too, if it `is_watched`."""

    asked_at: float = -1000.0
    times: list[float] = attrs.field(factory=list)

    async def ask(self, claim: Claim) -> Life:
        self.asked_at = trio.current_time()
        self.times.append(self.asked_at)
        return Life.ALIVE


async def test_a_follower_asks_its_owner_also_while_it_does_not_get_to_the_end_of_the_log(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Otherwise an owner would take an outage of the log store for its own isolation."""
    log, owner = Log(), AskedOwner()
    member = Membership(ME, log, owner, "memory", encrypted=False)  # type: ignore[arg-type]
    with trio.move_on_after(20):
        await member.keep_asking()
    gaps = [later - earlier for earlier, later in zip(owner.times, owner.times[1:], strict=False)]
    assert gaps
    assert max(gaps) < ISOLATED_S - 0.5
    count = len(owner.times)
    with trio.move_on_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.keep_asking)
            while True:
                owner.asked_at = trio.current_time()
                await trio.sleep(1)
    assert len(owner.times) == count, "it is asked anyway"
    log.epoch = 3
    with trio.move_on_after(20):
        await member.keep_asking()
    assert len(owner.times) == count, "this server is the owner"


@attrs.define
class OwnedLog(Log):
    """The log of an owner."""

    epoch: int | None = 3
    isolation: Isolation = attrs.field(factory=lambda: Owner().isolation)
    trouble: None = None


@pytest.mark.parametrize(("followed", "counts"), [("3", True), ("2", False), ("", False), ("x", False)])
async def test_a_server_that_follows_another_owner_is_no_follower(followed: str, counts: bool) -> None:
    owner = Owner()
    member = Membership(ME, OwnedLog(isolation=owner.isolation), AskedOwner(), "", encrypted=False)  # type: ignore[arg-type]
    assert OTHER.epoch == 3
    member.answer({FOLLOWS_HEADER: followed} if followed else {})
    assert owner.later(ISOLATED_S) == counts


@pytest.mark.slow("starts SeaweedFS and two servers, and waits until one is cut off from everything")
async def test_an_owner_goes_on_in_memory_while_no_server_reaches_the_log_store_and_ends_that_when_it_is_alone(
    tmp_path: Path,
) -> None:
    store, environment = seaweed()
    with open_proxies(environment, 2) as (proxies, each):
        with running(tmp_path, 2, store, environment, each=each) as cluster:
            owner = await cluster.owner()
            (follower,) = await cluster.followers(owner)
            async with open_client(owner.tcp, times=SessionTimes(first_within_s=PATIENCE_S)) as client:
                await client.create_shard("a", IN_MEMORY)
                await client.append("a", [Record(value=b"first")])
                for proxy in proxies:
                    proxy.decide = all_meet(Fault.SILENT)
                ends_at = trio.current_time() + 3 * ISOLATED_S
                while trio.current_time() < ends_at:
                    await client.append("a", [Record(value=b"while the log store is silent")])
                    await trio.sleep(0.1)
                assert says_why(owner) == [False, True]
                # A server that does not answer may as well be one that is not reached.
                follower.send(signal.SIGSTOP)
                with trio.fail_after(PATIENCE_S):
                    while says_why(owner) != [True, True]:
                        await trio.sleep(0.1)
                # The client sends it again until it is accepted.
                with trio.move_on_after(1) as waiting:
                    await client.append("a", [Record(value=b"acknowledged, it might be lost")])
                assert waiting.cancelled_caught
                assert "appends in memory mode are refused" in owner.log.read_text()
                for proxy in proxies:
                    proxy.pass_all()
                with trio.fail_after(PATIENCE_S):
                    await client.append("a", [Record(value=b"later")])


def says_why(server: Server) -> list[bool]:
    """Whether a server says that it is isolated, and that the log store does not answer it."""
    status, text = server.get("/readyz")
    assert status == 503
    return ["neither the log store nor another server" in text, "it did not answer yet" in text or "in time" in text]
