"""A session that was away while the store was restored passes the gap that a restore leaves in the lsns."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from broker_adapter import StorageAdapter, open_adapter
from tests.mqtt.delivery.delivering import Brittle, delivering
from tests.restores.restorable_server import restorable_server

pytestmark = pytest.mark.trio

FEW_WINDOWS = 40


@pytest.mark.slow("restores a server")
async def test_a_session_was_read_for_in_a_hundred_windows_without_records(tmp_path: Path) -> None:
    """Two sessions did not get what waited for them for over a minute on a busy machine."""
    async with restorable_server(tmp_path) as server:
        await server.append("a", 0, 5)
        await server.back_up()
        await server.restore()
        await server.append("a", 5, 5)
        async with open_adapter(server.url) as store:
            counted = Brittle(store)
            async with delivering(cast(StorageAdapter, counted)) as broker:
                session = broker.session(position_lsn=0)
                await session.restore({"a": 0})
                assert await session.take(10) == [b"%d" % number for number in range(10)]
    windows = [window for window in counted.followed if window[2] is not None]
    assert 1 < len(windows) < FEW_WINDOWS
