"""What happens, in order: two brokers, a mode switch under load, a SIGKILL and a restart, the check, the history.

For the history everything is sealed, and Spark counts what the brokers were promised.
Nothing but the server is started again on the way: the brokers find their way back on their own.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from broker_adapter import StorageAdapter, open_adapter
from demo.broker import ROOT, News
from demo.check import ShardEvidence, check_shard
from demo.display import Display, in_words
from demo.history import History, expected_figures, query_sealed
from demo.processes import BrokerProcess, DemoError, Server, broker_process, free_port
from demo.read_back import ReadBack, gather_evidence
from demo.report import Outcome, latencies_by_level
from journal.check import check_directory
from shards.model import Mode, SegmentKind, ShardInfo

FIRST, SECOND = "broker-a", "broker-b"

SECOND_BROKER_AT, TO_FILE_AT, TO_MEMORY_AT, KILL_AT = 0.08, 0.25, 0.45, 0.6
"""When the steps come, as shares of the run."""

_TOPICS: Final = f"{ROOT}/#"
_WAIT_S = 20.0
_AFTER_RESTART_S = 0.5
_SHOW_INTERVAL_S = 0.1


@attrs.define(slots=True)
class _Course:
    """What was noted on the way.

    Attributes:
        modes: Mode and the offset from which it holds, by shard.
        switched: The shard whose mode was switched.
        killed_at_us: Just before the SIGKILL; like the next two by the wall clock.
        restarted_at_us: The old server is dead, the new one not yet started: later acknowledgements are of the new one.
        ready_at_us: The new server accepts: acknowledgements before are of the old one.
        publishing_s: From the first sample to the last acknowledgement.
    """

    modes: defaultdict[str, list[tuple[str, int]]] = attrs.Factory(lambda: defaultdict(list))
    switched: str = ""
    killed_at_us: int = 0
    restarted_at_us: int = 0
    ready_at_us: int = 0
    publishing_s: float = 0.0


async def run_scenario(directory: Path, seconds: float, rate: float, display: Display) -> Outcome:
    """Run the demo.

    Args:
        directory: A fresh directory for data, ledgers and logs.
        seconds: How long the brokers publish.
        rate: Records a second that each broker samples.
        display: Told of every step.

    Raises:
        DemoError: It could not be carried through.
    """
    course = _Course()
    data = directory / "data"
    async with Server(data, free_port(), directory / "server.log") as server:
        await server.start()
        display.step(f"the server accepts on {server.url}, process {server.pid}, data in {data}")
        ledgers = await _with_brokers(server, course, directory, seconds, rate, display)
        display.step("the checker reads every shard from its start and compares it with the brokers' ledgers")
        async with open_adapter(server.url) as adapter:
            evidence, read_back = await gather_evidence(
                adapter, _TOPICS, ledgers, {course.switched}, course.ready_at_us
            )
            begun_at = trio.current_time()
            await _seal_all(adapter)
            sealing_s = trio.current_time() - begun_at
        await server.stop()
    files = list((data / "sealed").glob("shard=*/*.parquet"))
    display.step(f"what lies in files was sealed: {len(files)} Parquet files; the server has stopped on SIGTERM")
    report = await trio.to_thread.run_sync(check_directory, str(data))
    with display.working("every checksum of its directory was checked; Spark starts, then reads the sealed files"):
        found, session_s, query_s = await trio.to_thread.run_sync(query_sealed, data)
    history = History(
        found=found,
        expected=expected_figures(ledgers),
        sealed_files=len(files),
        sealed_bytes=sum(file.stat().st_size for file in files),
        sealing_s=sealing_s,
        session_s=session_s,
        query_s=query_s,
    )
    return _outcome(course, evidence, read_back, [str(damage) for damage in report.damages], history)


async def _seal_all(adapter: StorageAdapter) -> None:
    """Close every shard's segment and wait until those in files are Parquet."""
    for info in await adapter.list_shards(_TOPICS):
        with _deadline(f"{info.name} was not sealed"):
            await adapter.seal(info.name, wait=True)


async def _with_brokers(
    server: Server, course: _Course, directory: Path, seconds: float, rate: float, display: Display
) -> list[Path]:
    """Everything that happens while the brokers run. Returns their ledgers."""
    async with trio.open_nursery() as nursery, broker_process(FIRST, server.url, rate, directory, nursery) as first:
        await _wait_for(first, lambda news: news.durable > 0, "published anything")
        begun_at = trio.current_time()
        display.step(f"{FIRST} publishes this machine's telemetry from /proc as {ROOT}/{FIRST}/...")
        await trio.sleep(seconds * SECOND_BROKER_AT)
        async with broker_process(SECOND, server.url, rate, directory, nursery) as second:
            display.step(f"{SECOND} does the same; each subscribes to {_TOPICS} and so receives the other's topics")
            brokers = (first, second)
            with display.counting(seconds) as show:
                nursery.start_soon(_show, brokers, show)
                await _switch_modes(server, brokers, course, begun_at, seconds, display)
                await _kill_and_restart(server, brokers, course, display)
                await trio.sleep_until(max(begun_at + seconds, trio.current_time() + _AFTER_RESTART_S))
                await _finish(server, brokers, course, display)
        nursery.cancel_scope.cancel()
    return [broker.ledger_path for broker in brokers]


async def _switch_modes(
    server: Server, brokers: Sequence[BrokerProcess], course: _Course, begun_at: float, seconds: float, display: Display
) -> None:
    """Switch the busiest memory-mode shard to files and back while it is being written."""
    for broker in brokers:
        await _wait_for(broker, lambda news: news.durable > 0 and news.memory > 0 and news.received > 0, "begun")
    async with open_adapter(server.url) as adapter:
        infos = await adapter.list_shards(_TOPICS)
        for info in infos:
            course.modes[info.name].append((info.config.mode.value, 0))
        course.switched = max((info for info in infos if info.config.mode is Mode.MEMORY), key=_end).name
        for mode, share in ((Mode.FILE, TO_FILE_AT), (Mode.MEMORY, TO_MEMORY_AT)):
            await trio.sleep_until(begun_at + seconds * share)
            info = await adapter.set_mode(course.switched, mode)
            display.step(
                f"{info.name}, which is being written, goes on in {mode.value} mode at offset {info.next_offset:,}"
            )
            with _deadline(f"nothing more was written to {info.name}"):
                await adapter.read(info.name, info.next_offset, max_wait_s=_WAIT_S)
        await trio.sleep_until(begun_at + seconds * KILL_AT)
        course.modes[course.switched] = mode_history(await adapter.describe_shard(course.switched))


def mode_history(info: ShardInfo) -> list[tuple[str, int]]:
    """Modes that a shard has been in and the offsets from which they held, as its segments show it."""
    history: list[tuple[str, int]] = []
    for segment in info.segments:
        mode = Mode.MEMORY if segment.kind is SegmentKind.MEMORY else Mode.FILE
        if segment.next_offset > segment.base_offset and (not history or history[-1][0] != mode.value):
            history.append((mode.value, segment.base_offset))
    return history


async def _kill_and_restart(
    server: Server, brokers: Sequence[BrokerProcess], course: _Course, display: Display
) -> None:
    """SIGKILL the server, start it on the same data and port, and wait until both brokers publish again."""
    display.step(in_words([broker.news for broker in brokers]))
    pid, course.killed_at_us = server.pid, _now_us()
    await server.kill()
    course.restarted_at_us = _now_us()
    display.step(f"SIGKILL to the server, process {pid}; it is started again on the same data and port")
    await server.start()
    course.ready_at_us = _now_us()
    display.step(f"the server accepts again, process {server.pid}; the brokers connect by themselves")
    for broker in brokers:
        await _wait_for(broker, lambda news: news.acknowledged_at_us > course.ready_at_us, "published again")
    display.step("both brokers have appends acknowledged again")


async def _finish(server: Server, brokers: Sequence[BrokerProcess], course: _Course, display: Display) -> None:
    """Stop the brokers when everything is acknowledged and the other one has received it."""
    for broker in brokers:
        with _deadline(f"{broker.name} still waited for acknowledgements when it was stopped"):
            course.publishing_s = max(course.publishing_s, (await broker.stop()).seconds)
    display.step(in_words([broker.news for broker in brokers]))
    async with open_adapter(server.url) as adapter:
        ends = {info.name: info.next_offset for info in await adapter.list_shards(_TOPICS)}
    for broker in brokers:
        own = f"{ROOT}/{broker.name}/"
        with _deadline(f"{broker.name} did not receive everything"):
            await broker.finish({name: end for name, end in ends.items() if not name.startswith(own)})
    display.step("both brokers have stopped: all of theirs is acknowledged, all of the other's received")


async def _wait_for(broker: BrokerProcess, is_so: Callable[[News], bool], what: str) -> None:
    with _deadline(f"{broker.name} has not {what}"):
        await broker.wait_until(lambda: is_so(broker.news))


@contextmanager
def _deadline(otherwise: str) -> Iterator[None]:
    """Give what is in the block its time.

    Raises:
        DemoError: It took longer; ``otherwise`` says what is then the case.
    """
    try:
        with trio.fail_after(_WAIT_S):
            yield
    except trio.TooSlowError:
        raise DemoError(f"{otherwise}, within {_WAIT_S:.0f} s") from None


async def _show(brokers: Sequence[BrokerProcess], show: Callable[[list[News]], None]) -> None:
    while True:
        show([broker.news for broker in brokers])
        await trio.sleep(_SHOW_INTERVAL_S)


def _outcome(
    course: _Course,
    evidence: Sequence[ShardEvidence],
    read_back: ReadBack,
    damages: Sequence[str],
    history: History,
) -> Outcome:
    by_new_server = [ack.at_us for each in evidence for ack in each.acknowledged if ack.at_us > course.restarted_at_us]
    return Outcome(
        shards=[check_shard(each) for each in evidence],
        modes=course.modes,
        publishing_s=course.publishing_s,
        published_bytes=sum(record.size_bytes for each in evidence for record in each.published),
        latencies=latencies_by_level(evidence),
        ready_again_s=(course.ready_at_us - course.killed_at_us) / 1e6,
        acknowledged_again_s=(min(by_new_server) - course.killed_at_us) / 1e6,
        read_back=read_back,
        damages=damages,
        history=history,
    )


def _end(info: ShardInfo) -> int:
    return info.next_offset


def _now_us() -> int:
    return time.time_ns() // 1000
