"""Servers that share a store: killed, suspended, left without their directories or without their log store."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.late_store import VARIABLE
from tests.cluster.servers import Cluster, Server, remove
from tests.patience import PATIENCE_S
from tests.torture.rounds import Result, Round

SETTINGS: Final = (
    "storage.flush_interval_ms=20",
    "shards.memory_max_bytes=0",
    # So closed segments are converted, and checkpoints are stored, all the time.
    "conversion.max_age_s=1",
    "conversion.delta_grace_s=0",
)
JOURNAL_MIB: Final = (2, 64)
"""Followers begin again all the time, or hardly ever."""

_LONGEST_S: Final = 6.0
"""A suspended owner is lost after some 3 s."""


class Servers:
    """Three servers that are started and ended as if they were one.

    Args:
        cluster: They.
        log: The file of their logs.
        journal_mib: Budget of their journals. A follower disconnects its readers whenever it has read half of that.

    Attributes:
        settings: Theirs.
    """

    def __init__(self, cluster: Cluster, log: Path, journal_mib: int) -> None:
        self.settings = (*SETTINGS, f"storage.journal_budget_bytes={journal_mib} MiB")
        self.cluster = cluster
        self.log = log
        for server in self.servers:
            server.log = log

    @property
    def servers(self) -> list[Server]:
        return self.cluster.servers

    @property
    def address(self) -> str:
        return self.cluster.address

    @property
    def store(self) -> Path:
        return Path(self.cluster.address_of_store.removeprefix("file://").partition("?")[0])

    @property
    def data(self) -> Path:
        """The directory of the server that owned the store last."""
        return self._owner.data

    @property
    def exit_status(self) -> int | None:
        """The status of a server that has ended by itself; None while all run."""
        return next((status for server in self.servers if (status := server.exit_status) is not None), None)

    def start(self, prefix: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        """Start those that do not run, and return when one owns the store."""
        assert not prefix
        assert not environment
        for server in self.servers:
            if not server.is_running:
                server.start(*self.settings)
        self._owner = self.owner()

    def owner(self) -> Server:
        """The server that owns the store, as soon as one does."""
        ends_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < ends_at:
            for server in self.servers:
                if server.owns_store():
                    return server
            time.sleep(0.05)
        raise AssertionError(f"no server owns the store: {self.log.read_text()[-4000:]}")

    def wait_until_joined(self) -> None:
        """Until all servers have found that the log store does what they need of it."""
        ends_at = time.monotonic() + PATIENCE_S
        for server in self.servers:
            while server.get("/livez")[0] != 200:
                assert time.monotonic() < ends_at, f"a server does not start: {self.log.read_text()[-4000:]}"
                time.sleep(0.05)

    def wait_until_read(self) -> None:
        """Until all followers serve reads: a client that finds none goes to the owner, and stays there."""
        ends_at = time.monotonic() + PATIENCE_S
        for server in self.servers:
            while "journal_committed_lsn" not in server.get("/metrics")[1]:
                assert time.monotonic() < ends_at, f"a server serves no reads: {self.log.read_text()[-4000:]}"
                time.sleep(0.05)

    def end(self, how: signal.Signals) -> int:
        """End all; the highest status counts."""
        running = [server for server in self.servers if server.is_running]
        for server in running:
            server.send(how)
        try:
            return max((server.wait() for server in running), default=0)
        except subprocess.TimeoutExpired:
            for server in running:
                server.kill()
            raise


class ServersRound(Round[Servers]):
    """A round in which something is done to one of several servers."""

    def start_readers(self) -> None:
        """Have clients subscribe at followers until the end of the work. What they get is judged like all else."""
        self.server.wait_until_read()
        readers = self.start_worker("tests.torture.follower_readers")
        assert readers.stdout is not None
        assert readers.stdout.readline() == "working\n"

    def count_readers(self) -> None:
        """Count how many of the subscriptions are at followers now."""
        for server in self.server.servers:
            text = server.get("/metrics")[1] if server.is_running else ""
            found = re.search(r"^journal_subscriptions (.+)$", text, re.MULTILINE)
            if found and "\njournal_follower 1.0" in text:
                self.result.counts["subscriptions seen at followers"] += int(float(found[1]))

    def choose(self) -> Server:
        """The owner, mostly."""
        return self.server.owner() if self.rng.random() < 0.7 else self.rng.choice(self.server.servers)

    def kill(self, server: Server) -> None:
        """Kill it, take something of what it has on its disk, and start it again, at once or a while later."""
        began_ns = time.monotonic_ns()
        is_orderly = self.rng.random() < 0.2
        if is_orderly:
            server.send(signal.SIGTERM)
            if status := server.wait():
                self.result.broken.append(f"a server ended with status {status} at SIGTERM")
        else:
            server.kill()
        self.note_end(began_ns, "SIGTERM" if is_orderly else "SIGKILL")
        if self.rng.random() < 0.4:
            time.sleep(self.rng.uniform(0, _LONGEST_S))
        chance = self.rng.random()
        if chance < 0.3:
            remove(server.data)
            self.result.counts["directories deleted"] += 1
        elif chance < 0.5:
            for path in self.rng.sample(files := sorted((server.data / "journal").glob("*.jnl")), len(files) // 2):
                path.unlink()
            self.result.counts["journals cut"] += 1
        server.start(*self.server.settings)


class _ClusterRound(ServersRound):
    """Servers that share a directory.

    With several slots under way the log store answers late: otherwise there would never be more than one.
    """

    def __init__(self, directory: Path, rng: random.Random) -> None:
        slots = rng.choice((1, 4))
        if slots > 1:
            (directory / "store").mkdir()
            address = f"file://{directory / 'store'}?slots={slots}"
            cluster = Cluster(directory, 3, address, {VARIABLE: "5-150"}, module="benchmarks.late_store")
        else:
            cluster = Cluster(directory, 3)
        servers = Servers(cluster, directory / "servers.log", rng.choice(JOURNAL_MIB))
        super().__init__(directory, servers, rng)
        self.result.counts[f"rounds with up to {slots} slots under way"] += 1

    def suspend(self, server: Server) -> None:
        """Suspend it, perhaps for so long that another one takes the store over."""
        began_ns = time.monotonic_ns()
        server.send(signal.SIGSTOP)
        time.sleep(self.rng.choice((0.2, 1.0, _LONGEST_S)))
        server.send(signal.SIGCONT)
        self.note_end(began_ns, "suspended")

    def kill_all(self, _: Server) -> None:
        """Kill all at once."""
        self.end_server(signal.SIGKILL)
        self.start_server()

    def move_store(self, _: Server) -> None:
        """The log store does not answer for a while. A server that starts then refuses it: all have joined before."""
        self.server.wait_until_joined()
        began_ns = time.monotonic_ns()
        away = self.server.store.with_name("store.away")
        self.server.store.rename(away)
        time.sleep(self.rng.choice((0.1, 1.0, 3.0)))
        away.rename(self.server.store)
        self.note("the log store was away", began_ns)
        self.result.counts["absences of the log store"] += 1


def clusters(directory: Path, rng: random.Random, seconds: float) -> Result:
    """Everything that may happen to servers that share a store in a directory."""
    one = _ClusterRound(directory, rng)
    deeds: Sequence[Callable[[Server], None]] = (one.kill, one.kill, one.suspend, one.kill_all, one.move_store)
    with one.working():
        one.start_readers()
        ends_at = time.monotonic() + max(seconds, _LONGEST_S)
        while time.monotonic() < ends_at:
            # The moment is the point of it, so there is no condition to wait for.
            time.sleep(rng.uniform(0.1, 3))
            one.count_readers()
            rng.choice(deeds)(one.choose())
        one.finish()
    one.result.counts["takeovers"] += len(list((one.server.store / "journal" / "epoch").iterdir()))
    one.result.counts["checkpoints in log stores"] += len(list((one.server.store / "journal").glob("checkpoint/*")))
    return one.result
