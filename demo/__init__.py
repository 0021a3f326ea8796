"""The main job on real input: ``python -m demo``. `demo.scenario` says what happens, `demo.check` what must hold."""
