"""The server under whose monitor the loop rows run starts as they start it."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S


@pytest.mark.slow("starts the program several times")
def test_it_starts_with_settings_and_reports_its_longest_step(tmp_path: Path) -> None:
    """Nothing but the full benchmarks started it, and a renamed argument broke all loop rows."""
    command = [sys.executable, "-m", "benchmarks.loop_server", "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        [*command, "--set", "storage.disk_reserve_bytes=0"], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            match = re.search(r"^ready .*control=127\.0\.0\.1:(\d+)$", server.stdout.readline())
            assert match is not None
            with socket.create_connection(("127.0.0.1", int(match[1])), timeout=PATIENCE_S) as commands:
                with commands.makefile() as lines:
                    step = json.loads(lines.readline())
                assert set(step) >= {"held_s", "wall_s", "cpu_s"}
            server.terminate()
            assert server.wait(PATIENCE_S) == 0
        finally:
            server.kill()
