"""What a server asks of its log store for what is appended: bytes and requests, with one shard and with very many.

The same messages are appended one by one, to one shard or to each of many shards a few. Counted is everything from the
first message until the log store has a checkpoint of all messages: slots, shared Parquet files, the views. The creation
of the shards, which happens once, is not.

Slots are some time apart, so their number does not depend on how fast this machine is. Otherwise the longer the work
takes, the more slots are written, since each has what came while the one before it was under way.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import attrs
import trio

from benchmarks import processes
from benchmarks.history import telemetry
from benchmarks.ours import FILE
from benchmarks.runs import Measurement
from benchmarks.stage import Stage, start_journal
from benchmarks.wire import AckCounter, Wire
from journal.logstore.stores.addresses import StoreAddress
from journal.protocol import frames
from journal.protocol.frames import Op
from journal.server.cluster.status import ClusterStatus, read_status
from shards.format.batch import encode_values

KEYS: Final = tuple(f"store.cost.{what}.{shards}" for shards in ("one", "many") for what in ("bytes", "requests"))
MESSAGES: Final = 5
"""Messages of each of the many shards."""

_GROUP_SHARDS: Final = 1000
_FIRST_TIME_US: Final = 1_700_000_000_000_000
_STORED_TIMEOUT_S: Final = 1200.0
_LOOK_S: Final = 1.0
_INTERVAL: Final = "50ms"
_SETTINGS: Final = {"conversion.max_age_s": "20"}

Progress = Callable[[int, int], None]


def measurement(stage: Stage, shards: int, progress: Progress) -> Measurement:
    """The only measurement of this module; ``progress`` gets the shards done and the shards in all."""
    return Measurement(KEYS, lambda _: _measure(stage.directory / "cost", shards, progress), repeated=False)


def _measure(directory: Path, shards: int, progress: Progress) -> Mapping[str, float]:
    figures: dict[str, float] = {}
    for name, groups in (
        ("one", [["cost/one"] * _GROUP_SHARDS] * (shards // _GROUP_SHARDS)),
        ("many", [[f"cost/{n:06}" for n in range(at, at + _GROUP_SHARDS)] for at in range(0, shards, _GROUP_SHARDS)]),
    ):
        cost = _cost(directory / name, groups, progress)
        figures[f"store.cost.bytes.{name}"] = cost.sent_bytes / cost.appended_bytes
        figures[f"store.cost.requests.{name}"] = cost.requests
    return figures


@attrs.frozen(slots=True)
class _Cost:
    """What was appended, and what it cost.

    Attributes:
        appended_bytes: Bytes of the append frames.
        sent_bytes: Bytes sent to the log store.
        requests: Creates and reads. An owner's listing a second is left out. So are deletions: each object is deleted
            once, sooner or later, and most deletions in the measured time are of what the creation of the shards wrote.
    """

    appended_bytes: float
    sent_bytes: float
    requests: float


def _cost(directory: Path, groups: Sequence[Sequence[str]], progress: Progress) -> _Cost:
    address = f"file://{(directory / 'store').resolve()}?interval={_INTERVAL}"
    (directory / "store").mkdir(parents=True)
    http = f"127.0.0.1:{processes.free_port()}"
    settings = {**_SETTINGS, "listen.http": http, "cluster.store": address}
    server = start_journal(directory / "data", directory / "log", settings=settings)
    try:
        _create(server.address, groups)
        before = _counters(http)
        _append(server.address, groups, progress)
        lsn = _owner_lsn(address)
        ends_at = time.monotonic() + _STORED_TIMEOUT_S
        while _status(address).checkpoint_lsn < lsn:
            if time.monotonic() > ends_at:
                raise processes.ProcessError(f"no checkpoint of lsn {lsn} was stored within {_STORED_TIMEOUT_S:.0f} s")
            time.sleep(_LOOK_S)
        after = _counters(http)
    finally:
        server.stop()
    used = {name: value - before[name] for name, value in after.items()}
    return _Cost(
        used["journal_append_bytes_total"],
        used["journal_log_sent_bytes_total"],
        sum(used[f'journal_log_requests_total{{kind="{kind}"}}'] for kind in ("create", "get")),
    )


def _create(address: tuple[str, int], groups: Sequence[Sequence[str]]) -> None:
    with Wire(address, timeout_s=120.0) as wire:
        for names in groups:
            handles = wire.open(list(dict.fromkeys(names)), FILE)
            wire.requests(Op.CLOSE_SHARD, [{"handle": handle} for handle in handles])


def _append(address: tuple[str, int], groups: Sequence[Sequence[str]], progress: Progress) -> None:
    """Append the messages one by one, those of a group of shards in turns."""
    buffer = bytearray(1 << 20)
    number = 0
    with Wire(address, timeout_s=120.0) as wire:
        for done, names in enumerate(groups):
            opened = dict(zip(distinct := list(dict.fromkeys(names)), wire.open(distinct, None), strict=True))
            counter = AckCounter()
            for _ in range(MESSAGES):
                sent = []
                for name, value in zip(names, telemetry(number, len(names)), strict=True):
                    batch = encode_values([value], timestamp_us=_FIRST_TIME_US + number)
                    sent.append(frames.build_append(number, opened[name], batch))
                    number += 1
                wire.socket.sendall(b"".join(sent))
                acknowledged = 0
                while acknowledged < len(sent):
                    acknowledged += counter(buffer, wire.socket.recv_into(buffer))
            wire.requests(Op.CLOSE_SHARD, [{"handle": handle} for handle in opened.values()])
            progress(done, len(groups))
    progress(len(groups), len(groups))


def _counters(http: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=60.0) as reply:
        page = reply.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(journal_\S*_total\S*) (\S+)$", page, re.MULTILINE)}


def _status(text: str) -> ClusterStatus:
    address = StoreAddress.parse(text)
    with closing(address.open()) as store:
        return trio.run(read_status, store, address.root)


def _owner_lsn(address: str) -> int:
    [lsn] = [server.lsn for server in _status(address).servers if server.is_owner]
    assert lsn is not None  # it is alive
    return lsn
