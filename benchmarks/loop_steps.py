"""How long one operation blocks all other clients: the longest step of the event loop, with 100,000 shards.

The server runs in a process of its own with a monitor that measures every step of every task
(`benchmarks.loop_server`); the operations come through its socket, as from any client. The figure of a row is the
longest step during its operation. All operations use one server, one after the other, in the order of `OPERATIONS`.
Operations that measure the opening of closed shards come first, because the later ones leave shards open.

To add an operation: write a function that takes a `Scene` and does it with blocking requests (`scene.wire`), and put it
into `OPERATIONS` with its key and title. Preparations that are not to be measured go into a function of their own,
given as ``prepare``. The row ``loop.KEY`` with its goal follows from that.

``python -m benchmarks.loop_steps --data DIR [--shards N] [KEY ...]`` shows single operations with the name of the task
that had the longest step.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import msgspec

from benchmarks import load, loop_views, processes
from benchmarks.idle_shards import create_shards
from benchmarks.ours import FILE, batch_of
from benchmarks.runs import Goal, Measurement, Row
from benchmarks.stage import REPOSITORY, Stage
from benchmarks.wire import Wire
from journal.engine.wal.group_commit import MOST_WORDS
from journal.engine.write.transactions import MOST_CHANGES
from journal.protocol import frames
from journal.protocol.frames import Op
from shards.format.batch import encode, with_sequence
from shards.format.record import Record
from shards.model import ShardConfig

LONGEST_MS = 50.0
"""Limit of every step, in milliseconds: every other client waits that long in addition."""

PUBLISHED = 300
SEGMENTS = 500
CHANGES = 10_000
INDEXED_KEYS = 300_000
INDEXED_BATCHES = 10
WATCH_S = 0.3
LARGE_CREDIT_BYTES = 1 << 30
DONE_TIMEOUT_S = 300.0
LOOK_S = 0.25
CALM_LOOKS = 4
CALM_SHARE = 0.2
"""A server is calm if it uses at most this share of a processor at so many looks in a row. It always has some work."""

Progress = Callable[[int, int], None]

_CONTROL = re.compile(r"control=127\.0\.0\.1:(\d+)")
_decode = msgspec.msgpack.Decoder().decode


@attrs.define(slots=True)
class Scene:
    """What an operation may use.

    Attributes:
        address: Address of the server.
        shards: Number of idle shards; `shard_name` has their names.
        wire: A connection used only by the operation.
        wait_until_calm: Returns when the server has finished what operations left it to do in the background.
    """

    address: tuple[str, int]
    shards: int
    wire: Wire
    wait_until_calm: Callable[[], None]


@attrs.frozen(slots=True)
class Operation:
    """An operation of a client.

    Attributes:
        key: Last part of the row's key.
        title: Description.
        run: Does it; the operation is finished when it returns.
        prepare: Makes what it needs, before measuring.
    """

    key: str
    title: str
    run: Callable[[Scene], None]
    prepare: Callable[[Scene], None] | None = None


def shard_name(number: int) -> str:
    """Name of an idle shard."""
    return f"idle/{number}"


class Subscriber:
    """A subscription on a connection of its own that receives everything, and acknowledges it in a group.

    Attributes:
        pushes: Pushes received.
    """

    def __init__(self, scene: Scene, **request: Any) -> None:
        self.wire = Wire(scene.address, timeout_s=DONE_TIMEOUT_S)
        self.pushes = 0
        body = {"subscription": 1, "credit_bytes": LARGE_CREDIT_BYTES, **request}
        self._is_in_group = "group" in request
        self.wire.socket.sendall(frames.build(Op.SUBSCRIBE, 1, msgspec.msgpack.encode(body)))
        while self._receive() != Op.SUBSCRIBE:
            pass

    def _receive(self) -> int:
        op, _, body = self.wire.receive()
        if op == Op.PUSH:
            push = frames.read_push(body)
            self.pushes += 1
            if self._is_in_group:
                acknowledged = frames.build_acknowledge(1, push.shard_ref, push.first_offset, push.next_offset)
                self.wire.socket.sendall(acknowledged)
        return op

    def take(self, pushes: int) -> None:
        """Wait until it has received this many."""
        while self.pushes < pushes:
            self._receive()

    def close(self) -> None:
        self.wire.close()


# The operations


def _pages(scene: Scene, topic_filter: str) -> int:
    """List all shards that match, page by page; return their number."""
    found, after, more = 0, "", True
    while more:
        reply = scene.wire.request(Op.LIST_SHARDS, {"filter": topic_filter, "after": after, "limit": 1000})
        more = reply["more"]
        found += len(reply["shards"])
        after = reply["shards"][-1]["name"] if reply["shards"] else after
    return found


def _list(scene: Scene) -> None:
    if (found := _pages(scene, "#")) < scene.shards:
        raise load.LoadError(f"{found} shards were listed, expected at least {scene.shards}")


def _list_by_level(scene: Scene) -> None:
    _pages(scene, "+/+/nothing")


def _make_segments(scene: Scene) -> None:
    [handle] = scene.wire.open(["loop/segments"], FILE)
    batch = batch_of(1)
    for number in range(SEGMENTS):
        scene.wire.socket.sendall(frames.build_append(number, handle, batch))
        scene.wire.receive()
        scene.wire.request(Op.ROLL, {"name": "loop/segments"})


def _describe(scene: Scene) -> None:
    scene.wire.request(Op.DESCRIBE_SHARD, {"name": "loop/segments"})


def _subscribe(scene: Scene) -> None:
    subscriber = Subscriber(scene, filter="idle/#", start="earliest")
    subscriber.take(scene.shards)
    subscriber.close()


def _subscribe_by_level(scene: Scene) -> None:
    subscriber = Subscriber(scene, filter="+/1", start="earliest")
    subscriber.take(1)
    subscriber.close()


def _join_and_leave(scene: Scene) -> None:
    """The first member opens the shards, two more join, all leave."""
    members = [Subscriber(scene, filter="idle/#", start="latest", group="joined") for _ in range(3)]
    _publish_random(scene, members, 10)
    last = max(shard_name(number) for number in range(scene.shards))
    give_up_at = time.monotonic() + DONE_TIMEOUT_S
    while not scene.wire.request(Op.CURSOR_LIST, {"shard": last})["cursors"]:
        # Its position in the last shard is stored when all shards are done.
        if time.monotonic() > give_up_at:
            raise load.LoadError(f"the group did not open all shards within {DONE_TIMEOUT_S:g} s")
        time.sleep(0.05)
    for member in members:
        member.close()


def _publish(scene: Scene) -> None:
    member = Subscriber(scene, filter="idle/#", start="latest", group="published")
    _publish_random(scene, [member], PUBLISHED)
    member.close()


def _publish_random(scene: Scene, members: Sequence[Subscriber], count: int) -> None:
    """Append to random shards, one after the other, until every record has reached a member."""
    chosen = random.Random(7).sample(range(scene.shards), min(count, scene.shards))
    handles = scene.wire.open([shard_name(number) for number in chosen], None)
    batch = batch_of(1)
    for handle in handles:
        scene.wire.socket.sendall(frames.build_append(handle, handle, batch))
        scene.wire.receive()
    if len(members) == 1:
        members[0].take(len(handles))
    scene.wire.requests(Op.CLOSE_SHARD, [{"handle": handle} for handle in handles])


def _delete(scene: Scene) -> None:
    scene.wire.requests(
        Op.DELETE_SHARD, [{"name": shard_name(number)} for number in range(scene.shards - 1000, scene.shards)]
    )


def _put_state(scene: Scene) -> None:
    for start in range(0, CHANGES, 1000):
        bodies = [{"key": b"put/%d" % number, "value": bytes(60)} for number in range(start, start + 1000)]
        scene.wire.requests(Op.STATE_PUT, bodies)


def _scan_state(scene: Scene) -> None:
    """Half of the values have expired; whether they are removed already does not matter."""
    found, after, more = 0, None, True
    while more:
        reply = scene.wire.request(Op.STATE_SCAN, {"prefix": b"loop/", "after": after, "limit": 1000})
        more = reply["more"]
        found += len(reply["values"])
        after = reply["values"][-1]["key"] if reply["values"] else after
    if found < scene.shards * loop_views.FOR_EACH_SHARD // 2:
        raise load.LoadError(f"{found} values were found, expected half of all")


def _open_producers(scene: Scene) -> None:
    for start in range(0, CHANGES, 1000):
        bodies = [{"name": f"opened-{number}"} for number in range(start, start + 1000)]
        scene.wire.requests(Op.PRODUCER_OPEN, bodies)


def _checkpoint(scene: Scene) -> None:
    """A snapshot begins with a checkpoint; every shard that one of its producers has sent to is to be saved."""
    count = min(loop_views.SHARDS_WITH_PRODUCERS, scene.shards)
    all_producers = loop_views.FOR_EACH_SHARD * scene.shards
    for place, handle in enumerate(scene.wire.open([shard_name(number) for number in range(count)], None)):
        producer_id = loop_views.FIRST_PRODUCER_ID + place * loop_views.PRODUCERS_OF_A_SHARD % all_producers
        batch = with_sequence(batch_of(1), producer_id=producer_id, producer_epoch=1, sequence=0)
        scene.wire.socket.sendall(frames.build_append(handle, handle, batch))
        scene.wire.receive()
    scene.wire.request(Op.SNAPSHOT, {})


def _commit_appends(scene: Scene) -> None:
    """The shards with the highest numbers: no operation before has opened them one by one."""
    batch = batch_of(1)
    names = [shard_name(number) for number in range(max(0, scene.shards - MOST_CHANGES), scene.shards)]
    scene.wire.request(Op.COMMIT, {"appends": [{"shard": name, "batch": batch} for name in names]})


def _commit_state(scene: Scene) -> None:
    """Keys that are set, set again and deleted, all in the index of expiry times."""
    keys = [b"commit/%d" % number for number in range(MOST_CHANGES)]
    expires_at_us = time.time_ns() // 1000 + 86_400_000_000
    puts = [{"key": key, "value": bytes(60), "expires_at_us": expires_at_us} for key in keys]
    for _ in range(2):
        scene.wire.request(Op.COMMIT, {"puts": puts})
    scene.wire.request(Op.COMMIT, {"deletes": [{"key": key} for key in keys]})


def _append_indexed(scene: Scene) -> None:
    [handle] = scene.wire.open(["loop/words"], ShardConfig(index_keys=True, index_tags=True))
    records = [Record(b"v", key=b"%d" % number, tags=(f"tag-{number % 100}",)) for number in range(MOST_WORDS // 2)]
    batch = encode(records, now_us=1)
    for number in range(INDEXED_BATCHES):
        scene.wire.socket.sendall(frames.build_append(number, handle, batch))
        scene.wire.receive()


def _make_indexed(scene: Scene) -> None:
    [handle] = scene.wire.open(["loop/indexed"], ShardConfig(index_keys=True))
    for start in range(0, INDEXED_KEYS, 1000):
        records = [Record(b"v", key=b"%d" % number) for number in range(start, start + 1000)]
        scene.wire.socket.sendall(frames.build_append(start, handle, encode(records, now_us=1)))
        scene.wire.receive()


def _delete_indexed(scene: Scene) -> None:
    scene.wire.request(Op.DELETE_SHARD, {"name": "loop/indexed"})
    scene.wait_until_calm()


OPERATIONS: tuple[Operation, ...] = (
    Operation("list", "LIST_SHARDS of all, 1,000 to a page", _list),
    Operation("list-level", "LIST_SHARDS of `+/+/nothing`", _list_by_level),
    Operation("describe", f"DESCRIBE_SHARD of one with {SEGMENTS} segments", _describe, _make_segments),
    Operation("subscribe-level", "SUBSCRIBE to `+/1` from the earliest record on", _subscribe_by_level),
    Operation("group-join", "three members join a group on `idle/#`, and leave", _join_and_leave),
    Operation("group-publish", f"{PUBLISHED} appends to random shards with one member on `idle/#`", _publish),
    Operation("subscribe", "SUBSCRIBE to `idle/#` from the earliest record on", _subscribe),
    Operation("state-put", f"{CHANGES:,} STATE_PUTs, 1,000 at once", _put_state),
    Operation("state-scan", "STATE_SCAN of ten keys a shard, half of them expired", _scan_state),
    Operation(
        "producer-open", f"{CHANGES:,} PRODUCER_OPENs, 1,000 at once, in addition to ten a shard", _open_producers
    ),
    Operation("commit-appends", f"a COMMIT of {MOST_CHANGES:,} appends, each to another shard", _commit_appends),
    Operation("commit-state", f"COMMITs of {MOST_CHANGES:,} changes of state", _commit_state),
    Operation("index", f"{INDEXED_BATCHES} batches with {MOST_WORDS:,} words to index each", _append_indexed),
    Operation("checkpoint", "a checkpoint of 100 shards with 1,000 producers each", _checkpoint),
    Operation(
        "delete-indexed", f"DELETE_SHARD of one with {INDEXED_KEYS:,} indexed keys", _delete_indexed, _make_indexed
    ),
    # It deletes shards, so it is the last one.
    Operation("delete", "DELETE_SHARD of 1,000 at once", _delete),
)


def rows(shards: int) -> list[Row]:
    """A row for each operation."""
    goal = Goal(LONGEST_MS, at_most=True)
    promise = f"{shards:,} shards"
    return [Row(f"loop.{each.key}", f"longest step: {each.title}", "ms", promise, goal=goal) for each in OPERATIONS]


# Measuring


def measurement(stage: Stage, shards: int, progress: Progress) -> Measurement:
    """The only measurement of this module; ``progress`` gets the shards done and the shards in all."""

    def run(_: object) -> Mapping[str, float]:
        with _served(stage.directory / "loop", shards, progress) as server:
            return {
                f"loop.{operation.key}": _longest(server, shards, operation)["held_s"] * 1e3 for operation in OPERATIONS
            }

    return Measurement(tuple(f"loop.{each.key}" for each in OPERATIONS), run, repeated=False)


@contextmanager
def _served(directory: Path, shards: int, progress: Progress) -> Iterator[processes.Server]:
    """A server that was restarted after the shards were created: none of them has been opened since."""
    server = _start(directory)
    try:
        create_shards(server.address, shards, progress)
    finally:
        server.stop()
    loop_views.fill(directory / "data", [shard_name(number) for number in range(shards)])
    server = _start(directory)
    try:
        yield server
    finally:
        server.stop()


def _start(directory: Path) -> processes.Server:
    argv = processes.python_module("benchmarks.loop_server", "--data", str((directory / "data").resolve()))
    directory.mkdir(parents=True, exist_ok=True)
    return processes.start_announcing(argv, directory / "log", cwd=REPOSITORY)


def _longest(server: processes.Server, shards: int, operation: Operation) -> dict[str, Any]:
    calm = partial(_wait_until_calm, server)
    if operation.prepare is not None:
        with Wire(server.address) as wire:
            operation.prepare(Scene(server.address, shards, wire, calm))
    time.sleep(WATCH_S)
    _longest_step(server)
    begun_at = time.perf_counter()
    with Wire(server.address, timeout_s=DONE_TIMEOUT_S) as wire:
        operation.run(Scene(server.address, shards, wire, calm))
        took_s = time.perf_counter() - begun_at
        # Work that it left to do, such as a member's leave, belongs to it.
        time.sleep(WATCH_S)
        return {**_longest_step(server), "took_s": took_s}


def _wait_until_calm(server: processes.Server) -> None:
    """Return when the server has used little of a processor for a while."""
    give_up_at = time.monotonic() + DONE_TIMEOUT_S
    before_s, calm_looks = server.processor_s(), 0
    while calm_looks < CALM_LOOKS:
        if time.monotonic() > give_up_at:
            raise load.LoadError(f"the server was still busy after {DONE_TIMEOUT_S:g} s")
        time.sleep(LOOK_S)
        now_s = server.processor_s()
        calm_looks = calm_looks + 1 if now_s - before_s < CALM_SHARE * LOOK_S else 0
        before_s = now_s


def _longest_step(server: processes.Server) -> dict[str, Any]:
    """The longest step since the last call."""
    found = _CONTROL.search(server.log_path.read_text(errors="replace"))
    if found is None:
        raise load.LoadError(f"the server printed no control address; see {server.log_path}")
    with socket.create_connection(("127.0.0.1", int(found[1])), timeout=DONE_TIMEOUT_S) as commands:
        longest: dict[str, Any] = json.loads(commands.makefile("rb").read())
        return longest


def main() -> None:
    """Show single operations."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop_steps")
    parser.add_argument("--data", default=".bench", help="where to put data")
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("keys", nargs="*", help="operations; all if none is named")
    arguments = parser.parse_args()
    Path(arguments.data).mkdir(parents=True, exist_ok=True)
    chosen = [each for each in OPERATIONS if not arguments.keys or each.key in arguments.keys]
    with (
        Stage(Path(tempfile.mkdtemp(prefix="loop-", dir=arguments.data))) as stage,
        _served(stage.directory, arguments.shards, lambda done, total: None) as server,
    ):
        for operation in chosen:
            longest = _longest(server, arguments.shards, operation)
            ms = {
                name: f"{longest[f'{name}_s'] * 1e3:.1f} ms" for name in ("held", "wall", "cpu", "queued", "collecting")
            }
            print(
                f"loop.{operation.key:16} {ms['held']:>10} (took {ms['wall']}, processor {ms['cpu']}, "
                f"without a processor {ms['queued']}, waited {longest['waits']}; collecting {ms['collecting']}) "
                f"in {longest['took_s']:.1f} s: {longest['task']}"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
