"""Peers that run beside us: real servers, each with the smallest generator that drives it as hard as is fair."""

__all__: list[str] = []
