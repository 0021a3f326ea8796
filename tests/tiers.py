"""What `make test` leaves out: tests that are slow, and the examples beyond the first of those that try many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

FULL: Final = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Hypothesis's profile, without bounds of time: on a busy machine they would measure the machine."""

QUICK: Final = settings(FULL, max_examples=10)
"""Its profile for `make test`."""

COSTLY_FROM_S: Final = 0.3
"""Tests that took as many seconds of the processors in the last record are left out, too: some two hundred.

The record is of a fast machine; many take twice as long."""

OWN_SETTINGS: Final = "_hypothesis_internal_use_settings"
"""Where Hypothesis keeps what `@settings` says of a test."""


def is_quick(config: pytest.Config) -> bool:
    """Whether this is `make test`."""
    return config.getoption("hypothesis_profile", None) == "quick"


def try_few(item: pytest.Item) -> None:
    """Let a test that says how many examples it tries be content with those of `QUICK`."""
    function, machine = getattr(item, "function", None), getattr(item, "cls", None)
    if isinstance(machine, type) and isinstance(mine := vars(machine).get("settings"), settings):
        machine.settings = _few(mine)  # type: ignore[attr-defined]
    elif function is not None and isinstance(mine := vars(function).get(OWN_SETTINGS), settings):
        setattr(function, OWN_SETTINGS, _few(mine))


def _few(mine: settings, most: int = QUICK.max_examples) -> settings:
    return settings(mine, max_examples=min(mine.max_examples, most))


def leave_out_cases(items: Iterable[pytest.Item], *, is_quick: bool) -> None:
    """All cases of a test with the mark `few_cases` but the first ones are slow; `make test` tries as few examples."""
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("few_cases")
        if mark is None:
            continue
        most, reason = mark.args
        function = getattr(item, "function", None)
        if is_hypothesis_test(function):
            if is_quick:
                setattr(function, OWN_SETTINGS, _few(vars(function).get(OWN_SETTINGS, QUICK), most))
            continue
        name = item.nodeid.partition("[")[0]
        seen[name] += 1
        if seen[name] > most:
            item.add_marker(pytest.mark.slow(reason))


def leave_out_costly(items: Iterable[pytest.Item], recorded_s: Mapping[str, float]) -> None:
    """Tests that are recorded as costly are slow, without a mark in their source.

    Not those of Hypothesis: what was recorded is the time of all their examples, and `make test` tries few. Nor those
    whose source says with `few_cases` which of them stay.

    Args:
        items: All tests.
        recorded_s: Processor time by test.
    """
    for item in items:
        if is_hypothesis_test(getattr(item, "function", None)):
            continue
        took_s = recorded_s.get(item.nodeid, 0.0)
        is_decided = any(item.get_closest_marker(name) is not None for name in ("slow", "few_cases"))
        if took_s >= COSTLY_FROM_S and not is_decided:
            item.add_marker(pytest.mark.slow(f"takes {took_s} s of the processors"))


def check_bounds(item: pytest.Item) -> None:
    """A test with settings of its own has no bounds of time either; its `suppress_health_check` replaces the profile's.

    Raises:
        pytest.UsageError: It has one.
    """
    mine = getattr(getattr(item, "function", None), OWN_SETTINGS, None)
    if not isinstance(mine, settings):
        mine = vars(machine).get("settings") if isinstance(machine := getattr(item, "cls", None), type) else None
    if not isinstance(mine, settings):
        return
    if mine.deadline is not None or HealthCheck.too_slow not in mine.suppress_health_check:
        raise pytest.UsageError(
            f"{item.nodeid}: its settings have bounds of time, which measure the machine; add deadline=None and "
            "HealthCheck.too_slow to suppress_health_check"
        )


def check_reasons(item: pytest.Item) -> None:
    """A test that is slow says why.

    Raises:
        pytest.UsageError: It does not.
    """
    for mark in item.iter_markers("slow"):
        if not mark.args:
            raise pytest.UsageError(f"{item.nodeid}: say why it is slow, as in @pytest.mark.slow('starts Spark')")
