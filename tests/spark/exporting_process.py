"""An export in a process of its own that stops at a step until it is killed. Run as a program, see `kill_export_at`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

ROOT = Path(__file__).parent.parent.parent


def kill_export_at(
    step: str, options: Mapping[str, Any], *, jars: str = "", queue: str = "", later_s: float = 0.0
) -> None:
    """Run an export up to a step and kill it there with SIGKILL, its Java too.

    Args:
        step: One of those of `ExportProgress`; ``wrote`` is ``writing`` with at least one task done.
        queue: Drain this cache queue instead.
        later_s: Let it go on for so long before it is killed, wherever it is then.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, step, json.dumps(options), jars, queue]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True, text=True
    ) as process:
        assert process.stdout is not None
        try:
            told: list[str] = []
            for line in process.stdout:
                told.append(line.strip())
                if told[-1] == "stopped":
                    break
            assert told[-1:] == ["stopped"], f"the export ended before {step}: {told}"
            if later_s:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
                time.sleep(later_s)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            # Its Java writes there too: the end comes when both are gone.
            process.stdout.read()


def export_apart(options: Mapping[str, Any], *, cores: str, jars: str = "") -> dict[str, Any]:
    """Run an export in a process of its own.

    Args:
        cores: Tasks at a time, and how often each is tried, as ``2,4``.

    Returns:
        Its result, or only ``failed``: why it failed.
    """
    command = [sys.executable, __file__, f"cores={cores}", json.dumps(options), jars, ""]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, env=environment, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _main() -> None:
    from spark_export.export import ExportError, ExportOptions, ExportProgress, run_drain, run_export
    from spark_export.session import end_session, make_session
    from tests.spark.queues import QUICK

    step, options, jars, queue = sys.argv[1:]

    def stop(progress: ExportProgress) -> None:
        if progress.step == step or (step == "wrote" and progress.step == "writing" and progress.done):
            print("stopped", flush=True)
            # Until the end of the process, or until it is to go on.
            sys.stdin.readline()

    settings = {"spark.jars": jars} if jars else {}
    _, _, cores = step.partition("cores=")
    session = make_session("export", cores=cores or 1, memory="512m", extra=settings)
    if cores:
        try:
            result = attrs.asdict(run_export(session, ExportOptions(**json.loads(options))))
        except ExportError as error:
            result = {"failed": str(error)}
        print(json.dumps(result), flush=True)
        end_session(session)
    elif queue:
        # The next need not wait long for the lease of a process that was killed.
        run_drain(session, queue, ExportOptions(**json.loads(options)), lease=QUICK, progress=stop)
    else:
        run_export(session, ExportOptions(**json.loads(options)), progress=stop)


if __name__ == "__main__":
    _main()
