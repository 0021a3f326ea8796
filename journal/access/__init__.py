"""Authentication and authorization: users, tokens, certificates, rules, quotas, and the log of administrative acts.

The server and the MQTT broker share this package. They decide which right an operation needs.
"""

__all__: list[str] = []
