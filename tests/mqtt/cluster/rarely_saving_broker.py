"""Starts a broker that stores sessions only when it has to, not at intervals.

A test that kills it knows what was stored of a session: nothing since the last step that had to be durable.

python -m tests.mqtt.cluster.rarely_saving_broker --config FILE
"""

from __future__ import annotations

import trio

from broker_adapter.mqtt.cli.main import main
from broker_adapter.mqtt.session.write_behind import WriteBehind


async def _save_nothing(_: WriteBehind) -> None:
    await trio.sleep_forever()


if __name__ == "__main__":
    WriteBehind.run = _save_nothing  # type: ignore[method-assign]
    main()
