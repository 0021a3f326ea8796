"""The operating system, the clock and the ordered store, each behind a protocol, so that tests can simulate them."""

__all__: list[str] = []
