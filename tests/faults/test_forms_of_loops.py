"""A server appends the same with compiled loops and with those in Python, and says at its start which it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal.protocol import frames
from shards import compiled
from shards.format.batch import encode_values
from shards.model import ShardConfig
from tests.faults.processes import Client, running


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
