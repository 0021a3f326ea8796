"""An owner that has lost its store, or may have: what it answers from the first moment on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import trio

from journal.client.opening import open_client
from journal.client.session_keeper import SessionTimes
from journal.engine import Engine, open_engine
from journal.engine.shared_log import log as log_module
from journal.logstore import Created
from journal.logstore.stores.memory import MemoryLogStore
from shards.errors import NotOwnerError
from shards.model import Mode, ShardConfig
from tests.cluster.servers import running
from tests.cluster.test_follower_engine import CONFIG, Watch, append, log_of
from tests.cluster.test_real_stores import seaweed
from tests.logstore.faulty_proxy import Fault, all_meet, open_proxies
from tests.patience import PATIENCE_S

SOON_S: Final = 3.0
"""So soon a server answers that waits for nothing. The rest is for slow machines; a request of it may take 10 s."""

IN_MEMORY: Final = ShardConfig(mode=Mode.MEMORY)


async def wait_until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.01)


class Slow:
    """Passes calls to a store that others use as well. Reads of objects are not answered before `answer` is set."""

    def __init__(self, store: MemoryLogStore) -> None:
        self._store = store
        self.answer = threading.Event()
        self.answer.set()

    def create(self, key: str, data: bytes) -> Created:
        return self._store.create(key, data)

    def get(self, key: str) -> bytes | None:
        self.answer.wait(2 * SOON_S)
        return self._store.get(key)

    def list_after(self, key: str) -> list[str]:
        return self._store.list_after(key)

    def delete(self, key: str) -> None:
        self._store.delete(key)

    def close(self) -> None:
        """Others use the store."""


async def failure_of(engine: Engine) -> NotOwnerError:
    failure = await engine.wait_failed()
    assert isinstance(failure, NotOwnerError)
    return failure


async def test_an_owner_that_has_read_a_newer_claim_acknowledges_nothing_more_before_it_knows_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked for the address of the next owner first, for up to 10 s. What it acknowledged meanwhile was lost."""
    monkeypatch.setattr(log_module, "_LOOK_S", 0.1)
    store = MemoryLogStore()
    slow = Slow(store)
    log, following = log_of(slow, 1, Watch(takes_over=True)), log_of(store, 2, Watch(takes_over=True))
    async with open_engine(str(tmp_path / "a"), CONFIG, log=log) as engine:
        await engine.create_shard("a", IN_MEMORY)
        await append(engine, "a", b"0")
        slow.answer.clear()
        following.begin(log_module.NOWHERE)
        assert await following.wait()
        try:
            with trio.fail_after(SOON_S):
                assert (await failure_of(engine)).owner == ""
            assert not slow.answer.is_set()
            assert log.epoch is None
            with pytest.raises(NotOwnerError):
                await append(engine, "a", b"1")
        finally:
            slow.answer.set()
    await log.lose()
    assert log.claim.addresses.tcp == "host-2:7420"


@pytest.mark.slow("starts SeaweedFS and two servers, and waits until one takes over from the other")
async def test_an_owner_that_has_lost_its_store_sends_clients_on_before_the_log_store_answers_it(
    tmp_path: Path,
) -> None:
    """It accepted no connection until the requests under way had ended: clients hung there for 12 s."""
    store, environment = seaweed()
    with open_proxies(environment, 2) as (proxies, each):
        with running(tmp_path, 2, store, environment, each=each) as cluster:
            former = await cluster.owner()
            await cluster.followers(former)
            proxy = proxies[cluster.servers.index(former)]
            proxy.decide = all_meet(Fault.SILENT)
            await wait_until(lambda: "lost the store to another server" in former.log.read_text())
            for _ in range(10):
                began = trio.current_time()
                # It knows the former owner alone.
                async with open_client(former.tcp, times=SessionTimes(first_within_s=PATIENCE_S)) as client:
                    await client.create_shard("a", IN_MEMORY, exist_ok=True)
                assert trio.current_time() - began < SOON_S
                await trio.sleep(0.2)
