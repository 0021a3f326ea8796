"""The main job on real input: ``python -m demo``. See `demo.scenario` for what happens and `demo.check` for what must hold."""
