"""What a broker tells operators of itself over HTTP: health, and metrics for Prometheus."""

__all__: list[str] = []
