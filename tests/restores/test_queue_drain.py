"""A driver of a cache queue that lives through a restore of the server."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from broker_adapter import open_adapter
from broker_adapter.cache_queue import look
from broker_adapter.cache_queue.stored import Counts
from journal.protocol.errors import ServerRestoredError
from tests.cache_queue.queues import driven, filled, waiting
from tests.patience import PATIENCE_S
from tests.restores.restorable_server import restorable_server

pytestmark = pytest.mark.trio


@pytest.mark.slow("restores the store of a queue")
async def test_a_driver_confirmed_offsets_that_hold_other_records_since_a_restore(tmp_path: Path) -> None:
    """The cursor had the version that the driver knew, so the new records left the queue without being delivered."""
    async with restorable_server(tmp_path) as server:
        async with open_adapter(server.url, ends_at_restore=True) as adapter:
            await filled(adapter, b"1", b"2", b"3")
            drain = await driven(adapter)
            await drain.confirm(3, Counts(confirmed=3), 0)
        async with open_adapter(server.url, ends_at_restore=True) as adapter:
            drain = await driven(adapter, 2)
            await server.back_up()
            await filled(adapter, b"lost 4", b"lost 5")
            read = await waiting(drain)
            assert [record.value for record in read] == [b"lost 4", b"lost 5"]
            await server.restore()
            async with open_adapter(server.url) as other:
                await filled(other, b"new 4", b"new 5")
            with trio.fail_after(PATIENCE_S), pytest.raises(ServerRestoredError):
                await drain.confirm(5, Counts(confirmed=2), 0)
        async with open_adapter(server.url) as adapter:
            assert (await look(adapter, "plant")).depth.first_offset == 3
            drain = await driven(adapter, 3)
            assert [record.value for record in await waiting(drain)] == [b"new 4", b"new 5"]
