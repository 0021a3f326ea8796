"""Servers and brokers do the same with compiled loops and with those in Python, and say which they have."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from broker_adapter.mqtt_codec import EMPTY, Properties, Version
from broker_adapter.mqtt_codec.packets import Publish
from journal.protocol import frames
from shards import compiled
from shards.format.batch import encode_values
from shards.model import ShardConfig
from tests.faults.processes import Client, running
from tests.mqtt.edges.broker_process import broker_process


def append_together(client: Client, handle: int, count: int) -> list[int]:
    """Send frames at once, as an open window does; returns the offsets that are acknowledged, in order."""
    first = client.next_correlation()
    made = [
        frames.build_append(first + number, handle, encode_values([b"%d" % number], timestamp_us=1_000))
        for number in range(count)
    ]
    for _ in range(count - 1):
        client.next_correlation()
    client.sock.sendall(b"".join(made))
    offsets: list[int] = []
    while len(offsets) < count:
        op, _, _, body = client.receive()
        assert op == frames.Op.APPENDED
        offsets += [ack[4] for ack in frames.read_acks(body)]
    return offsets


@pytest.mark.slow("starts three servers")
def test_a_store_is_used_by_both_forms_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each server is killed; the next one has the other form, and everything that was acknowledged."""
    forms = ["", "1", ""]
    expected: list[bytes] = []
    for number, form in enumerate(forms):
        monkeypatch.setenv(compiled.PURE_PYTHON, form)
        with running(tmp_path / "data") as server, server.client() as client:
            handle = client.open("s", ShardConfig())
            assert client.read(handle) == expected
            assert append_together(client, handle, 500) == list(range(500 * number, 500 * number + 500))
            expected += [b"%d" % each for each in range(500)]
            assert client.read(handle) == expected
            server.kill()
    log = (tmp_path / "data.log").read_text()
    said = "Python (JOURNAL_PURE_PYTHON is set)"
    assert log.count(said) == 1
    if compiled.append_loop_type is not None:
        assert log.count(compiled.DESCRIPTION) == 2


@pytest.mark.slow("starts four brokers")
@pytest.mark.parametrize("version", Version)
async def test_messages_wait_for_a_session_at_a_broker_with_one_form_and_are_delivered_by_one_with_the_other(
    tmp_path: Path, version: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers have a store of their own, say which form they have, and deliver what was published."""
    arguments = ("--store", f"embedded:{tmp_path}/data", "--listen", "127.0.0.1:0", "--anonymous")
    lasting = Properties(session_expiry_interval=3600) if version is Version.V5 else EMPTY
    said = {"": compiled.DESCRIPTION, "1": "Python (JOURNAL_PURE_PYTHON is set)"}
    sent = [
        Publish(
            f"topic/{number % 3}",
            b"%d" % number,
            number % 3,
            properties=Properties(content_type="text", user_properties=(("n", f"\u00fc{number}"),))
            if number % 2 and version is Version.V5
            else EMPTY,
        )
        for number in range(1, 60)
        if number % 3
    ]
    got: list[list[Publish]] = []
    for form, other in (("", "1"), ("1", "")):
        monkeypatch.setenv(compiled.PURE_PYTHON, form)
        async with broker_process(tmp_path, *arguments) as broker:
            assert f"hot_loops={said[form]}" in broker.log.replace("'", "")
            async with broker.client(version=version) as away:
                await away.connect("away", clean_start=False, properties=lasting)
                await away.subscribe("topic/#", qos=2)
            async with broker.client(version=version) as publisher:
                await publisher.connect("publisher")
                for packet in sent:
                    await publisher.publish(packet.topic, packet.payload, qos=packet.qos, properties=packet.properties)
            assert await broker.stop() == 0
        monkeypatch.setenv(compiled.PURE_PYTHON, other)
        async with broker_process(tmp_path, *arguments) as broker:
            async with broker.client(version=version) as away:
                await away.connect("away", clean_start=False, properties=lasting)
                got.append([await away.message() for _ in sent])
            assert await broker.stop() == 0
    for delivered in got:
        by_topic = [
            [replace(packet, packet_id=0) for packet in packets if packet.topic == topic]
            for packets in (delivered, sent)
            for topic in ("topic/1", "topic/2")
        ]
        assert by_topic[:2] == by_topic[2:]
