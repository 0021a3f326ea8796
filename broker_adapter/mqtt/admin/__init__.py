"""Changing over HTTP what all brokers share; what a broker tells of itself is `broker_adapter.mqtt.telemetry`."""

__all__: list[str] = []
