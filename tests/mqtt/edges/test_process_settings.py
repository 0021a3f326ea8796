"""What each of several processes of a broker gets from its supervisor: its settings, and lines over a pipe."""

from __future__ import annotations

import pytest
import trio
from trio.testing import memory_stream_one_way_pair

from broker_adapter.mqtt.broker.composition import limits_of
from broker_adapter.mqtt.config import BrokerConfig, LimitsSection, load_broker_config
from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt.server.process_settings import ProcessSettings
from broker_adapter.mqtt.server.worker_lines import (
    Answer,
    Failed,
    Line,
    LineReader,
    Question,
    Ready,
    Reload,
    Start,
    encode,
)
from journal.settings.values import ConfigurationError
from journal.telemetry.http_pages import Reply, Request


def config(**overrides: object) -> BrokerConfig:
    return load_broker_config(None, {name.replace("__", "."): value for name, value in overrides.items()})


@pytest.mark.parametrize(("processes", "most"), [(1, 1), (2, 5), (3, 3), (7, 20_000), (64, 100)])
def test_parts_of_the_limit_of_connections_are_the_whole(processes: int, most: int) -> None:
    whole = config(broker__processes=processes, limits__max_connections=most)
    settings = ProcessSettings("b", whole.listen, {})
    parts = [settings.of(whole, number).limits.max_connections for number in range(1, processes + 1)]
    assert sum(parts) == most
    assert max(parts) - min(parts) <= 1


def test_each_process_has_an_id_of_its_own_and_the_bound_addresses() -> None:
    whole = config(broker__processes=2, broker__id="plant", listen__mqtt="127.0.0.1:0")
    settings = ProcessSettings("made-up", whole.listen, {"mqtt": "127.0.0.1:4711"})
    assert [settings.of(whole, number).broker.id for number in (1, 2)] == ["plant-1", "plant-2"]
    assert settings.of(whole, 1).listen.mqtt == "127.0.0.1:4711"
    unnamed = config(broker__processes=2, listen__mqtt="127.0.0.1:5000")
    assert settings.of(unnamed, 2).broker.id == "made-up-2"
    # An address that was changed is not in use before a restart, and the log has to say so.
    assert settings.of(unnamed, 2).listen.mqtt == "127.0.0.1:5000"


def test_memory_of_clients_that_are_not_accepted_is_divided() -> None:
    section = LimitsSection()
    assert limits_of(section) == Limits()
    assert limits_of(section, 64).max_unaccepted_bytes * 64 == Limits().max_unaccepted_bytes
    assert limits_of(section, 64).max_unaccepted_bytes >= Limits().max_connect_bytes


@pytest.mark.parametrize("value", [0, 65, -1, "many", "1.5", True])
def test_another_number_of_processes_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="is not a number of processes"):
        config(broker__processes=value)


def test_the_number_of_processes_may_be_a_text_or_that_of_the_processors() -> None:
    assert config(broker__processes="3").broker.processes == 3
    assert 1 <= config(broker__processes="auto").broker.processes <= 64


@pytest.mark.parametrize("chunk_bytes", [1, 7, 100_000])
async def test_lines_arrive_as_they_were_sent_however_they_are_cut(chunk_bytes: int) -> None:
    settings = config(broker__id="b", limits__receive_maximum=7)
    request = Request("/x", "Basic eA==", "127.0.0.1", "a=b", {"host": "h"}, b"\x00\n\xff")
    lines: list[Line] = [
        Start(2, settings),
        Reload(settings),
        Question(1, "PUT", request),
        Answer(1, Reply(b"\n\x00", 503, "text/html", "Basic", {"ETag": "1"})),
        Ready(),
        Failed("why; and more", 78),
    ]
    sent, received = memory_stream_one_way_pair()
    data = b"".join(map(encode, lines))

    async def send() -> None:
        for at in range(0, len(data), chunk_bytes):
            await sent.send_all(data[at : at + chunk_bytes])
        await sent.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        assert [line async for line in LineReader(received).lines()] == lines
