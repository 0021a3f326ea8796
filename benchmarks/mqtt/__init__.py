"""MQTT brokers under load: ours on the journal server, and the peers that are installed; rows are in `mqtt.rows`."""

__all__: list[str] = []
