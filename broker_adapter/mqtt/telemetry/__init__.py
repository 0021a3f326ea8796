"""Health and metrics of a broker over HTTP, the metrics in the text format of Prometheus."""

__all__: list[str] = []
