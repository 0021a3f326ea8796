"""The main job on real input: ``python -m demo``. `demo.scenario` says what happens, `demo.evidence` what must hold.

`demo.processes` are server and brokers, `demo.clients` MQTT clients, `demo.results` is what is told of a run.
"""

__all__: list[str] = []
