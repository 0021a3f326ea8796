"""The settings of each of several processes, from those of their broker. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from broker_adapter.mqtt.config import BrokerConfig, ListenSection


class ProcessSettings:
    """Makes the settings of each process.

    Args:
        broker_id: Id of the broker.
        listen: The configured addresses.
        bound: The addresses that are reserved for them, by the name of the setting: with a port in place of 0.
    """

    def __init__(self, broker_id: str, listen: ListenSection, bound: Mapping[str, str]) -> None:
        self._broker_id = broker_id
        self._listen = listen
        self._bound = bound

    def of(self, config: BrokerConfig, number: int) -> BrokerConfig:
        """The settings of the process with this number, from 1.

        Each has an id of its own, and a part of `max_connections` so that all parts are the whole.
        """
        count, most = config.broker.processes, config.limits.max_connections
        kept = {
            name: address
            for name, address in self._bound.items()
            if getattr(config.listen, name) == getattr(self._listen, name)
        }
        return attrs.evolve(
            config,
            broker=attrs.evolve(config.broker, id=f"{config.broker.id or self._broker_id}-{number}"),
            listen=ListenSection(**{**attrs.asdict(config.listen, recurse=False), **kept}),
            limits=attrs.evolve(config.limits, max_connections=most // count + (number <= most % count)),
        )
