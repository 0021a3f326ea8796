"""A demonstration with real input: ``python -m demo``. `demo.scenario` has the steps, `demo.evidence` the checks.

`demo.processes` are server and brokers, `demo.clients` MQTT clients, `demo.results` the output of a run.
"""

__all__: list[str] = []
