"""For all tests: how workers share them and start programs, what they take, and what a failure says of the machine."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import structlog
from hypothesis import settings

from tests import tiers
from tests.durations import DurationRecorder, recorded_processor_s
from tests.preloaded import PreloadedPrograms
from tests.steady_clock import SteadyClock
from tests.still_running import StillRunning
from tests.time_limits import limit_time

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

_LOOK_S: Final = 0.25
_STILL_S: Final = 1.0
_MOST_WORKERS: Final = 8

settings.register_profile("full", tiers.FULL)
settings.register_profile("quick", tiers.QUICK)
settings.load_profile("full")


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """A program that a test runs in this process sets up the log for a stream that is closed after the test."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def steady_clock() -> SteadyClock:
    """Trio's clock for a test with time limits, on which pauses of this process do not count."""
    return SteadyClock()


class _StandstillWatch(threading.Thread):
    """Notices when this process did not run for a while: the machine was busy, or stopped, or one call held it up."""

    def __init__(self) -> None:
        super().__init__(name="standstill-watch", daemon=True)
        self._found: list[float] = []

    def begin(self) -> None:
        """A test begins."""
        self._found.clear()

    def run(self) -> None:
        looked_s = time.monotonic()
        while True:
            time.sleep(_LOOK_S)
            now_s = time.monotonic()
            still_s = now_s - looked_s - _LOOK_S
            if still_s > _STILL_S:
                self._found.append(still_s)
            looked_s = now_s

    def tell(self) -> str:
        """What was noticed since the test began, in words."""
        found = [f"{still_s:.1f} s" for still_s in self._found]
        return f"this process stood still for {', '.join(found)}" if found else "this process never stood still"


_watch: Final = _StandstillWatch()
_programs: Final = PreloadedPrograms()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-durations", metavar="FILE", type=Path, help="write how long tests took, wall and processor seconds"
    )
    parser.addoption(
        "--own-interpreters",
        action="store_true",
        help="start programs as users do: fork none (tests/preloaded.py), and let Java compile as it does by itself",
    )


def pytest_configure(config: pytest.Config) -> None:
    recorder = DurationRecorder(config.getoption("--record-durations"), names_unmarked=tiers.is_quick(config))
    config.pluginmanager.register(recorder, "durations")
    config.pluginmanager.register(StillRunning(), "still-running")
    if not config.getoption("--own-interpreters"):
        _programs.install()
        # Spark passes these options to each Java. Queries of tests are over before thorough compilation pays.
        os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")


def pytest_unconfigure() -> None:
    _programs.uninstall()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """With `-n auto`: most tests wait for most of their time."""
    return min(2 * len(os.sched_getaffinity(0)), _MOST_WORKERS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    is_quick = tiers.is_quick(config)
    tiers.leave_out_cases(items, is_quick=is_quick)
    tiers.leave_out_costly(items, recorded_processor_s())
    for item in items:
        tiers.check_reasons(item)
        tiers.check_bounds(item)
        limit_time(item)
        if is_quick:
            tiers.try_few(item)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """With `-n`, and nothing else said about how tests are given out."""
    if config.getoption("dist") != "load":
        return None
    from tests.distribution import LongestFirst

    return LongestFirst(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    # The collector would look again and again at ten thousand tests, of which nothing is released.
    gc.disable()


def pytest_collection_finish() -> None:
    gc.enable()
    # Nor need it look at them later. At the end, extension modules check that all of theirs is released.
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)


def pytest_sessionstart() -> None:
    _watch.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with _programs.excused() if item.get_closest_marker("own_interpreter") else contextlib.nullcontext():
        return (yield)


def pytest_runtest_setup() -> None:
    _watch.begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[misc]
    if report.failed:
        load = " ".join(f"{each:.1f}" for each in os.getloadavg())
        report.sections.append(("machine", f"{_watch.tell()}; load averages {load}"))
    return report  # type: ignore[return-value]
