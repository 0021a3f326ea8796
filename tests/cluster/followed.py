"""An owner and a follower of one store in the test's own process, each with a server."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from journal.engine import Addresses, Claim, Decision, Engine, SharedLog, open_engine
from journal.engine.shared_log.slot_groups import SlotGroup
from journal.logstore.ownership import Member
from journal.logstore.stores.memory import MemoryLogStore
from journal.net.listening import bind
from journal.server.server import Server
from journal.settings.values import MIB
from tests.cluster.test_follower_engine import CONFIG, STORE_ID, Watch, log_of
from tests.patience import PATIENCE_S


class HeldLog(SharedLog):
    """A log of which nothing new is read while it is held.

    Attributes:
        is_held: Whether it is.
    """

    is_held = False

    async def read(self, next_lsn: int) -> list[SlotGroup] | None:
        if self.is_held:
            await trio.lowlevel.checkpoint()
            return None
        return await super().read(next_lsn)


class EagerWatch(Watch):
    """Looks at the log at once if a test waits for it, and seldom otherwise: a test can see that nothing happens."""

    def __init__(self) -> None:
        super().__init__()
        self._wanted = trio.Event()

    def look(self) -> None:
        self._wanted.set()

    async def wait(self, claim: Claim, *, has_moved: bool) -> Decision:
        with trio.move_on_after(0.2):
            await self._wanted.wait()
        self._wanted = trio.Event()
        return Decision.LOOK


class FollowerServing:
    """Serves the clients that read from a follower, as the process of a server does."""

    def __init__(self, nursery: trio.Nursery, sock: socket.socket) -> None:
        self._nursery = nursery
        self._sock = sock
        self._ended = trio.Event()
        self.server: Server | None = None

    def begin(self, engine: Engine) -> None:
        self.server, self._ended = Server(engine), trio.Event()
        self._nursery.start_soon(self._run, self.server, self._ended)

    async def _run(self, server: Server, ended: trio.Event) -> None:
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run, {"tcp": self._sock})
        finally:
            ended.set()

    async def end(self) -> None:
        assert self.server is not None
        self.server.stopping.set()
        await self._ended.wait()
        self.server = None

    async def engine(self) -> Engine:
        """The engine that is read, as soon as there is one."""
        with trio.fail_after(PATIENCE_S):
            while self.server is None:
                await trio.sleep(0.005)
        return self.server.engine


@attrs.frozen
class Followed:
    """See the module.

    Attributes:
        owner: The engine of the owner.
        owner_tcp: Its address.
        follower_tcp: The address of the follower.
        serving: Serves at the follower.
        log: The log as the follower reads it.
        watch: Tells it when to read.
    """

    owner: Engine
    owner_tcp: str
    follower_tcp: str
    serving: FollowerServing
    log: HeldLog
    watch: EagerWatch

    async def caught_up(self) -> Engine:
        """The engine of the follower, when it has everything that is durable now."""
        engine = await self.serving.engine()
        self.watch.look()
        with trio.fail_after(PATIENCE_S):
            await engine.wait_to_have(self.owner.parts.committer.journal_lsn)
        return engine


@asynccontextmanager
async def followed(directory: Path) -> AsyncIterator[Followed]:
    """Both, for the length of the block."""
    store = MemoryLogStore()
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(bind({"tcp": "127.0.0.1:0"}, main="tcp")["tcp"]) for _ in range(2))
        owner_log = log_of(store, 1, Watch(takes_over=True))
        async with (
            open_engine(str(directory / "owner"), CONFIG, log=owner_log) as owner,
            trio.open_nursery() as nursery,
        ):
            await nursery.start(Server(owner).run, {"tcp": first})
            watch = EagerWatch()
            log = HeldLog(store, Member("root", STORE_ID, bytes([2]) * 16), Addresses("host-2:7420", ""), watch, MIB)
            serving = FollowerServing(nursery, second)

            async def follow() -> None:
                async with open_engine(str(directory / "follower"), CONFIG, log=log, readers=serving):
                    await trio.sleep_forever()

            nursery.start_soon(follow)
            await serving.engine()
            yield Followed(owner, _address(first), _address(second), serving, log, watch)
            nursery.cancel_scope.cancel()


def _address(sock: socket.socket) -> str:
    return "{}:{}".format(*sock.getsockname()[:2])
