"""A demonstration of servers that share a store: ``python -m demo.cluster``. `demo.cluster.scenario` has the steps.

It shares clients, brokers, checks and tables with `demo`.
"""

__all__: list[str] = []
