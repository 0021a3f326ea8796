"""Servers whose log store, SeaweedFS, is in trouble: single requests meet faults, one server is cut off, or all are."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.cluster.servers import Cluster, Server
from tests.logstore import seaweed_server
from tests.logstore.faulty_proxy import Fault, FaultyProxy, RandomFaults, all_meet, creates_meet, open_proxy, through
from tests.torture.cluster_phase import JOURNAL_MIB, Servers, ServersRound
from tests.torture.rounds import Result

_LASTS_S: Final = (0.5, 3.0, 10.0)
"""How long a trouble lasts: it is repaired in time, it is noticed, or an owner is replaced by it."""

_CUT_OFF: Final = (Fault.DENIED, Fault.SILENT, Fault.UNANSWERED, Fault.REFUSED_503)
"""What all requests of a server meet that is cut off."""


class _StoreRound(ServersRound):
    """Each of the servers reaches the log store through a proxy of its own.

    Args:
        slots: How many slots of the log they write at a time.
        endpoint: Address of the object store.
        proxies: Before it, one for each server.
    """

    def __init__(
        self, directory: Path, rng: random.Random, slots: int, endpoint: str, proxies: Sequence[FaultyProxy]
    ) -> None:
        keys = {"AWS_ACCESS_KEY_ID": seaweed_server.KEY, "AWS_SECRET_ACCESS_KEY": seaweed_server.SECRET}
        each = [through(proxy, {"AWS_ENDPOINT_URL": endpoint, **keys}) for proxy in proxies]
        cluster = Cluster(
            directory, len(each), f"s3://{seaweed_server.BUCKET}/{directory.name}?slots={slots}", each=each
        )
        servers = Servers(cluster, directory / "servers.log", rng.choice(JOURNAL_MIB))
        super().__init__(directory, servers, rng)
        self._proxies = proxies

    def proxy_of(self, server: Server) -> FaultyProxy:
        return self._proxies[self.server.servers.index(server)]

    def meet_faults(self, _: Server) -> None:
        """A part of the requests of all servers meet faults that a client of an object store has to expect."""
        with self._trouble("faults of single requests"):
            for proxy in self._proxies:
                proxy.decide = RandomFaults(random.Random(self.rng.random()), self.rng.choice((0.05, 0.3)))

    def cut_off(self, server: Server) -> None:
        """The log store does not answer one server, or refuses it."""
        fault = self.rng.choice(_CUT_OFF)
        with self._trouble(f"one server cut off ({fault.name.lower()})"):
            self.proxy_of(server).decide = all_meet(fault)

    def cut_off_all(self, _: Server) -> None:
        """The log store does not answer any server, or refuses all."""
        fault = self.rng.choice(_CUT_OFF)
        with self._trouble(f"all servers cut off ({fault.name.lower()})"):
            for proxy in self._proxies:
                proxy.decide = all_meet(fault)

    def fill(self, _: Server) -> None:
        """There is no space in the log store."""
        with self._trouble("log store full"):
            for proxy in self._proxies:
                proxy.decide = creates_meet(Fault.FULL)

    def refuse(self, server: Server) -> None:
        """Nothing listens at the log store of one server."""
        with self._trouble("no connections for one server"):
            self.proxy_of(server).refuse()

    def kill_when_well(self, server: Server) -> None:
        """A start is refused while the log store is in trouble, so all have joined before and nothing is wrong."""
        self.server.wait_until_joined()
        self.kill(server)
        self.server.wait_until_joined()

    @contextmanager
    def _trouble(self, what: str) -> Iterator[None]:
        """The block begins a trouble, which then lasts for a while. Afterwards a server owns the store again."""
        self.server.wait_until_joined()
        began_ns = time.monotonic_ns()
        yield
        # The moment is the point of it, so there is no condition to wait for.
        time.sleep(self.rng.choice(_LASTS_S))
        self.end_troubles()
        # The store may have another owner now, so what was only in the memory of the one before is lost.
        self.note_end(began_ns, what)
        self.server.owner()

    def end_troubles(self) -> None:
        """All requests pass again, and what was to be carried out late has been."""
        for proxy in self._proxies:
            proxy.listen()
            proxy.pass_all()
            proxy.finish()


def troubled_stores(directory: Path, rng: random.Random, seconds: float) -> Result:
    """Everything that an object store and the way to it may do to the requests of three servers."""
    if seaweed_server.find_program() is None:
        return Result(skipped="SeaweedFS is not installed (make peers)")
    slots = rng.choice((1, 4))
    with ExitStack() as stack:
        seaweed = stack.enter_context(seaweed_server.own_server())
        proxies = [stack.enter_context(open_proxy(seaweed.endpoint)) for _ in range(3)]
        one = _StoreRound(directory, rng, slots, seaweed.endpoint, proxies)
        deeds: Sequence[Callable[[Server], None]] = (
            one.meet_faults,
            one.meet_faults,
            one.cut_off,
            one.cut_off,
            one.cut_off_all,
            one.fill,
            one.refuse,
            one.kill_when_well,
        )
        with one.working():
            one.start_readers()
            ends_at = time.monotonic() + max(seconds, min(_LASTS_S))
            while time.monotonic() < ends_at:
                time.sleep(rng.uniform(0.1, 2))
                one.count_readers()
                rng.choice(deeds)(one.choose())
            one.finish()
        for proxy in proxies:
            one.result.counts.update({f"requests that met {fault.name}": n for fault, n in proxy.counts.items()})
    log = one.server.log.read_text()
    one.result.counts["troubles that servers told"] += log.count("the log store is in trouble")
    one.result.counts["takeovers"] += log.count("the owner of the store is lost")
    one.result.counts[f"rounds with up to {slots} slots under way"] += 1
    return one.result
