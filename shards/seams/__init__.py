"""Interfaces to the operating system, the clock and the ordered store, which tests can replace by simulations."""

__all__: list[str] = []
