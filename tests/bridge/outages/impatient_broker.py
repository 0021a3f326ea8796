"""A broker as `journal-broker serve` runs it, but for its bridges' leases: they end after two seconds.

So tests need not wait as long as people do until another broker takes over. ``python -m`` this module, with the
configuration's path.
"""

from __future__ import annotations

import sys
from typing import Final

import trio

from broker_adapter.cache_queue import LeaseSettings
from broker_adapter.mqtt.config import BrokerConfig, load_broker_config
from broker_adapter.mqtt.server.process import run_broker

LEASE: Final = LeaseSettings(lease_s=2.0, renew_interval_s=0.4)


async def main(path: str) -> None:
    def read() -> BrokerConfig:
        return load_broker_config(path, {})

    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(
            lambda *, task_status: run_broker(read(), read, lease=LEASE, task_status=task_status)
        )
        if addresses:
            print("ready", *addresses, flush=True)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
