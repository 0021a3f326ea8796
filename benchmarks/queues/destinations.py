"""The sinks to which queues are drained: real servers and a directory, each with a check of what it has afterwards."""

from __future__ import annotations

import http.client
import itertools
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import processes
from benchmarks.load import LoadError
from benchmarks.mqtt import drain
from benchmarks.mqtt.connection import Connection, forget_session
from benchmarks.peers.mosquitto import Mosquitto
from benchmarks.peers.postgresql import Postgresql
from benchmarks.peers.redis import Redis
from benchmarks.queues.putting import TOPIC
from benchmarks.queues.rows import VALUE_BYTES
from benchmarks.stage import REPOSITORY, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

Destination = Callable[[Stage, int], AbstractContextManager[Mapping[str, str]]]
"""Context manager with the settings of a sink for one run; at its end it checks the number of stored records."""

AWAY: Final = "bench-bridged"
TABLE: Final = (
    "CREATE TABLE {} (topic text, client text, qos smallint, timestamp timestamptz, payload bytea,"
    ' "offset" bigint, headers jsonb)'
)
_numbers = itertools.count()


def _expect(found: int, count: int, where: str) -> None:
    if found != count:
        raise LoadError(f"{count:,} records were drained, and {where} has {found:,}")


@contextmanager
def web_service(stage: Stage, count: int) -> Iterator[Mapping[str, str]]:
    def start() -> processes.Server:
        port = processes.free_port()
        argv = processes.python_module("benchmarks.queues.web_service", str(port))
        return processes.start_listening(argv, port, stage.directory / "web-service.log", cwd=REPOSITORY)

    address = stage.once("web-service", start, processes.Server.stop).address
    before = _state(address)
    yield {"type": "http", "url": f"http://{address[0]}:{address[1]}/rows"}
    state = _state(address)
    if not state["in_order"]:
        raise LoadError("rows came twice or out of order")
    _expect(state["rows"] - before["rows"], count, "the web service")


def _state(address: tuple[str, int]) -> dict[str, int]:
    connection = http.client.HTTPConnection(*address, timeout=20)
    connection.request("GET", "/")
    state: dict[str, int] = json.loads(connection.getresponse().read())
    connection.close()
    return state


def postgresql_server(stage: Stage) -> Postgresql:
    """The server that all rows share."""
    return stage.once("postgresql", lambda: Postgresql(stage.directory / "postgresql"), Postgresql.close)


@contextmanager
def postgresql(stage: Stage, count: int) -> Iterator[Mapping[str, str]]:
    server = postgresql_server(stage)
    table = f"drained_{next(_numbers)}"
    server.execute(TABLE.format(table))
    yield {"type": "postgresql", "url": server.url, "table": table}
    [(rows, offsets)] = server.execute(f'SELECT count(*), count(DISTINCT "offset") FROM {table}')
    _expect(rows, count, "the table")
    _expect(offsets, count, "the table without repeats")
    server.execute(f"DROP TABLE {table}")


@contextmanager
def mosquitto(stage: Stage, count: int) -> Iterator[Mapping[str, str]]:
    broker = stage.once("mosquitto-sink", lambda: Mosquitto(stage.directory / "mosquitto-sink"), Mosquitto.close).server
    with Connection(broker.address, AWAY, clean_session=False) as away:
        away.subscribe(TOPIC)
        away.disconnect()
    yield {"type": "mqtt", "address": f"{broker.address[0]}:{broker.address[1]}"}
    with Connection(broker.address, AWAY, clean_session=False) as back:
        drain.receive_all(back, count, topic=TOPIC, payload_bytes=VALUE_BYTES)
        back.disconnect()
    forget_session(broker.address, AWAY)


@contextmanager
def redis(stage: Stage, count: int) -> Iterator[Mapping[str, str]]:
    server: Redis = stage.redis_synced()
    stream = f"drained-{next(_numbers)}"
    host, port = server.address
    yield {"type": "redis", "url": f"redis://{host}:{port}/0", "stream": stream}
    _expect(server.length(stream), count, "the stream")
    server.delete(stream)


@contextmanager
def files(stage: Stage, count: int) -> Iterator[Mapping[str, str]]:
    from pyarrow import parquet

    directory = stage.directory / f"drained-{next(_numbers)}"
    directory.mkdir()
    yield {"type": "files", "directory": str(directory.resolve())}
    found: list[Path] = list(directory.rglob("*.parquet"))
    _expect(sum(parquet.read_metadata(path).num_rows for path in found), count, "the directory")
    for path in found:
        path.unlink()


DESTINATIONS: Final[Mapping[str, Destination]] = {
    "http": web_service,
    "postgresql": postgresql,
    "mqtt": mosquitto,
    "redis": redis,
    "files": files,
}
