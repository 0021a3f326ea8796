"""Servers whose log lies in an object store or a database, beside the bare requests of that store; and a takeover."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final

from benchmarks import late_store, load, processes
from benchmarks.load import LoadError, Timing
from benchmarks.ours import FILE, Generator, batch_of
from benchmarks.peers.postgresql import Postgresql
from benchmarks.peers.seaweedfs import BUCKET, Seaweedfs
from benchmarks.processes import Server
from benchmarks.runs import Measurement
from benchmarks.sizes import BATCH_RECORDS, SMALL_BATCH_BYTES
from benchmarks.stage import REPOSITORY, Stage, start_journal
from benchmarks.wire import Wire
from journal.logstore.store import LogStore
from journal.logstore.stores.postgresql import PostgresqlLogStore
from journal.protocol import frames

THREADS: Final = 8
"""How many bare requests are under way for a rate."""

LATE_MS: Final = 100
"""How much longer than a directory the late store takes for each create."""

TAKEOVERS: Final = 5
_TAKEOVER_S: Final = 60.0
_SETTINGS: Final = {"listen.http": "127.0.0.1:0"}
_numbers = itertools.count()


def measurements(stage: Stage) -> list[Measurement]:
    """All measurements of log stores."""
    return [
        Measurement(("limit.put-p50", "limit.put"), lambda t: _bare("limit.put", _seaweedfs(stage).open, t)),
        Measurement(("store.s3.one-p50",), lambda t: {"store.s3.one-p50": _one(stage, _on_s3(stage), t)}),
        Measurement(("store.s3.batches",), lambda t: {"store.s3.batches": _batches(stage, _on_s3(stage), t)}),
        Measurement(
            ("limit.insert-p50", "limit.insert"),
            lambda t: _bare("limit.insert", lambda: PostgresqlLogStore(_postgresql(stage).url), t),
        ),
        Measurement(
            ("store.postgresql.one-p50",), lambda t: {"store.postgresql.one-p50": _one(stage, _on_postgresql(stage), t)}
        ),
        Measurement(
            ("store.postgresql.singles",),
            lambda t: {"store.postgresql.singles": _generator(stage, _on_postgresql(stage)).singles(t)},
        ),
        *(
            Measurement((key,), lambda t, key=key, slots=slots: {key: _batches(stage, _on_late_store(stage, slots), t)})
            for key, slots in (("store.window.one", 1), ("store.window.four", 4))
        ),
        Measurement(("store.takeover",), lambda _: _takeover(stage.directory / "takeover"), repeated=False),
    ]


# The stores


def _seaweedfs(stage: Stage) -> Seaweedfs:
    return stage.once("seaweedfs", lambda: Seaweedfs(stage.directory / "seaweedfs"), Seaweedfs.close)


def _postgresql(stage: Stage) -> Postgresql:
    return stage.once("log-postgresql", lambda: Postgresql(stage.directory / "log-postgresql"), Postgresql.close)


def _bare(key: str, connect: Callable[[], LogStore], timing: Timing) -> Mapping[str, float]:
    """Creating objects of 16 KiB: p50 of one after the other in microseconds, and MB/s of several at a time."""
    with closing(connect()) as store:

        def create(_: object = None) -> None:
            store.create(f"bare/{next(_numbers)}", os.urandom(SMALL_BATCH_BYTES))

        latencies_us = load.one_at_a_time(create, lambda: None, timing)
        clock = load.RateClock(timing)
        done = 0
        with ThreadPoolExecutor(THREADS) as threads:
            while not clock.ended(done * SMALL_BATCH_BYTES):
                done += len(list(threads.map(create, range(THREADS))))
        return {f"{key}-p50": load.percentile(latencies_us, 0.5), key: clock.rate() / 1e6}


# Servers over them


def _on_s3(stage: Stage) -> Server:
    store = _seaweedfs(stage)
    return stage.once(
        "journal-s3",
        lambda: _start(stage, "s3", f"s3://{BUCKET}/benchmark", store.environment),
        Server.stop,
    )


def _on_postgresql(stage: Stage) -> Server:
    url = _postgresql(stage).url
    return stage.once("journal-postgresql", lambda: _start(stage, "postgresql", f"{url}#benchmark", {}), Server.stop)


def _on_late_store(stage: Stage, slots: int) -> Server:
    """A server that writes so many slots at a time into a directory that answers late."""
    name = f"late-{slots}"
    store = stage.directory / f"store-{name}"

    def start() -> Server:
        store.mkdir()
        address = f"file://{store.resolve()}?slots={slots}"
        return _start(stage, name, address, {late_store.VARIABLE: str(LATE_MS)}, "benchmarks.late_store")

    return stage.once(f"journal-{name}", start, Server.stop)


def _start(
    stage: Stage, name: str, address: str, environment: Mapping[str, str], module: str = "journal.cli.main"
) -> Server:
    directory = stage.directory / f"journal-{name}"
    settings = {**_SETTINGS, "cluster.store": address}
    return start_journal(
        directory / "data", directory / "log", settings=settings, environment=environment, module=module
    )


def _generator(stage: Stage, server: Server) -> Generator:
    return Generator(stage, lambda: Wire(server.address))


def _one(stage: Stage, server: Server, timing: Timing) -> float:
    return _generator(stage, server).one_at_a_time(timing, BATCH_RECORDS)


def _batches(stage: Stage, server: Server, timing: Timing) -> float:
    """Megabytes per second of batches of 16 KiB."""
    return _generator(stage, server).batches(FILE, timing) / BATCH_RECORDS * len(batch_of(BATCH_RECORDS)) / 1e6


# Takeover


def _takeover(directory: Path) -> Mapping[str, float]:
    """Median of the seconds from SIGKILL to the owner until another server has acknowledged an append."""
    (directory / "store").mkdir(parents=True)
    ports = [processes.free_port() for _ in range(2)]
    servers = [_start_member(directory, name, port) for name, port in zip("ab", ports, strict=True)]
    seconds = []
    try:
        _append(servers)
        for turn in range(TAKEOVERS):
            # The first one to answer owned the store all the time before.
            owner = _append(servers)
            begun_at = time.perf_counter()
            servers[owner].stop(kill=True)
            _append([servers[1 - owner]])
            seconds.append(time.perf_counter() - begun_at)
            servers[owner] = _start_member(directory, f"{'ab'[owner]}{turn}", ports[owner])
    finally:
        for server in servers:
            server.stop()
    return {"store.takeover": sorted(seconds)[len(seconds) // 2]}


def _start_member(directory: Path, name: str, port: int) -> Server:
    """A server of the cluster; it accepts connections also while it follows. A new name is an empty directory."""
    argv = processes.python_module("journal.cli.main", "serve", "--data", str((directory / name).resolve()))
    argv += ["--store", f"file://{(directory / 'store').resolve()}", "--listen", f"127.0.0.1:{port}"]
    argv += ["--set", "listen.http=127.0.0.1:0", "--set", "listen.websocket="]
    return processes.start_listening(argv, port, directory / f"{name}.log", cwd=REPOSITORY)


def _append(servers: Sequence[Server]) -> int:
    """Append a record at whichever server owns the store, as soon as one does; returns which one it was."""
    batch = batch_of(1)
    give_up_at = time.perf_counter() + _TAKEOVER_S
    while time.perf_counter() < give_up_at:
        for number, server in enumerate(servers):
            try:
                with Wire(server.address, timeout_s=5.0) as wire:
                    [handle] = wire.open(["takeover"], FILE)
                    wire.socket.sendall(frames.build_append(0, handle, batch))
                    wire.receive()
                    return number
            except (LoadError, OSError):
                continue
        time.sleep(0.01)
    raise LoadError(f"no server of the store took an append within {_TAKEOVER_S:.0f} s")
