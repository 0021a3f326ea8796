"""What a run says of tests that do not end."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.still_running import StillRunning

pytest_plugins = ["pytester"]


def test_a_test_that_has_been_running_for_minutes_is_named() -> None:
    running = StillRunning()
    running.pytest_runtest_logstart("tests/test_a.py::test_hangs")
    assert running.lines(time.monotonic() + 60) == []
    (line,) = running.lines(time.monotonic() + 180)
    assert line.startswith("after 3 min, for 1")
    assert line.endswith("s now: tests/test_a.py::test_hangs")


def test_a_test_that_has_ended_or_whose_worker_has_ended_is_not_named() -> None:
    for when in ("teardown", "???"):
        running = StillRunning()
        running.pytest_runtest_logstart("tests/test_a.py::test_ends")
        running.pytest_runtest_logreport(
            pytest.TestReport("tests/test_a.py::test_ends", ("", 0, ""), {}, "passed", None, when)  # type: ignore[arg-type]
        )
        assert running.lines(time.monotonic() + 180) == []


@pytest.mark.slow("starts pytest and a worker of it, and a test runs for a second")
@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["", "in a worker"])
def test_what_is_said_of_a_test_is_not_among_its_output(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makeconftest(
        f"""
        import sys

        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from tests.still_running import StillRunning

        def pytest_configure(config):
            config.pluginmanager.register(StillRunning(0.1, 0.3), "still-running")
        """
    )
    pytester.makepyfile(
        test_it="""
        import time

        def test_takes_long(capfd):
            time.sleep(1)
            assert capfd.readouterr() == ("", "")
        """
    )
    result = pytester.runpytest_subprocess(*workers)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["after 0 min, for * s now: *test_takes_long*"])


@pytest.mark.slow("starts pytest and a worker of it in processes of their own")
def test_a_test_that_cannot_be_interrupted_ends_its_worker_and_not_the_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import signal, time

        def test_hangs():
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
            time.sleep(600)

        def test_passes():
            pass
        """
    )
    bounds = ("-o", "faulthandler_timeout=1", "-o", "faulthandler_exit_on_timeout=true")
    result = pytester.runpytest_subprocess("-n", "1", "--timeout", "1", *bounds)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*crashed while running*test_hangs*"])
    result.stderr.fnmatch_lines(["*test_it.py*in test_hangs*"])
