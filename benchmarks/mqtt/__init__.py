"""MQTT brokers under load: the product on a journal server, and installed peers; the rows are in `mqtt.rows`."""

__all__: list[str] = []
