"""HTTP API to change the rules that all brokers share; health and metrics are in `broker_adapter.mqtt.telemetry`."""

__all__: list[str] = []
