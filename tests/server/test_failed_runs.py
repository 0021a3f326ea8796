"""A run of appends that ends with an error of this program: what was appended before it is stored all the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from journal.engine.wal.group import AckSink
from journal.engine.write.appender import Appender
from journal.protocol import frames
from journal.server.receive_buffers import ReceiveBuffer
from shards.segments.shard import Shard
from tests.server.serving import batch_of, serving


async def test_the_receive_buffer_of_a_failed_run_is_kept_until_what_it_appended_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given to another connection, which overwrote entries that the disk thread had not written yet."""
    run = Appender.append_run
    held: list[ReceiveBuffer] = []
    hold = ReceiveBuffer.hold

    def run_and_fail(
        self: Appender, view: memoryview, start: int, end: int, handles: Sequence[Shard | None], sink: AckSink
    ) -> int:
        if (taken := run(self, view, start, end, handles, sink)) == start:
            return taken
        monkeypatch.undo()
        monkeypatch.setattr(ReceiveBuffer, "hold", note)
        raise MemoryError

    def note(self: ReceiveBuffer) -> None:
        held.append(self)
        hold(self)

    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        # The first one opens a segment, which is not done in a run.
        await client.send(frames.build_append(100, handle, batch_of(b"first")))
        await client.acks([100])
        monkeypatch.setattr(Appender, "append_run", run_and_fail)
        await client.send(frames.build_append(101, handle, batch_of(b"second")))
        await client.receive_until_closed()
        assert len(held) == 1
        assert served.unexpected
        served.unexpected.clear()
    async with serving(tmp_path) as served, served.client() as client:
        assert await client.read_values(await client.open("a")) == [b"first", b"second"]
