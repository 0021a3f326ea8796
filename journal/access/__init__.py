"""Who a peer is and what it may do: users, tokens, certificates, rules, quotas, and the record of administrative acts.

The server and the MQTT broker share what is here. What a rule's answer means for an operation is theirs to say.
"""

__all__: list[str] = []
