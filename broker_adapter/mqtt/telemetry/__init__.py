"""What a broker tells operators of itself over HTTP: health, and metrics for Prometheus."""
