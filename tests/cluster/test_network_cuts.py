"""Links between servers, clients and the log store are cut one way and both: nothing that was acknowledged is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from demo.cluster.network.namespaces import isolated
from demo.errors import DemoError
from demo.processes.seaweedfs import find_seaweedfs
from tests.patience import PATIENCE_S

CUTS = 5


@pytest.mark.slow("cuts the owner off five times, which takes a takeover each")
def test_a_cut_in_any_direction_loses_nothing_and_clients_get_on(tmp_path: Path) -> None:
    try:
        find_seaweedfs()
    except DemoError as error:
        pytest.skip(str(error))
    command = isolated([sys.executable, "-m", "tests.cluster.cut_network", str(tmp_path)])
    if command is None:
        pytest.skip("this machine lets us make no network namespace (or has no unshare, nsenter and ip)")
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("acknowledged again") == CUTS
    assert "HELD" in done.stdout
