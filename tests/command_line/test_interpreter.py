"""Each program starts with fewer passes of the garbage collector than Python makes by default."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import gc, sys
sys.argv = ["program", "--version"]
from {module} import main
before = gc.get_threshold()
try:
    main()
except SystemExit as end:
    assert not end.code
print(before[0], gc.get_threshold()[0])
"""


@pytest.mark.parametrize("module", ["journal.cli.main", "broker_adapter.mqtt.cli.main", "spark_export.cli.main"])
def test_a_program_collects_cycles_less_often_than_by_default(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(module=module)], capture_output=True, text=True, check=True, timeout=60
    )
    before, after = map(int, done.stdout.splitlines()[-1].split())
    assert after > before
