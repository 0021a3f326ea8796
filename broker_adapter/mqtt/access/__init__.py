"""Who may connect to a broker, and what each user may publish and subscribe to."""

__all__: list[str] = []
