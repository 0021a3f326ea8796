"""A test in Trio that takes too long fails by itself, shows where it waited, and leaves the next test alone."""

from __future__ import annotations

import traceback

import pytest
import trio

from tests.time_limits import TookTooLongError, ends_within

pytest_plugins = ["pytester"]


async def _waits_for_ever() -> None:
    await trio.sleep_forever()


async def test_what_takes_too_long_shows_where_it_waited() -> None:
    with pytest.raises(TookTooLongError, match=r"not done after 0\.01 s") as caught:
        await ends_within(0.01, _waits_for_ever)()
    assert "in _waits_for_ever" in "".join(traceback.format_exception(caught.value))


async def test_each_of_its_tasks_shows_where_it_waited() -> None:
    async def waits_in_a_nursery() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_waits_for_ever)
            await trio.Event().wait()

    with pytest.raises(TookTooLongError) as caught:
        await ends_within(0.01, waits_in_a_nursery)()
    shown = "".join(traceback.format_exception(caught.value))
    assert "in _waits_for_ever" in shown
    assert "in waits_in_a_nursery" in shown


async def test_a_failure_in_time_stays_what_it_is() -> None:
    async def fails() -> None:
        raise ValueError("this failed")

    with pytest.raises(ValueError, match="this failed"):
        await ends_within(60, fails)()


async def test_a_clock_that_jumps_does_not_count(autojump_clock: trio.testing.MockClock) -> None:
    await ends_within(60, trio.sleep)(3600)


@pytest.mark.parametrize("how", ["ini", "option", "mark"])
def test_the_next_test_in_the_same_process_passes(pytester: pytest.Pytester, how: str) -> None:
    pytester.makeini("[pytest]\ntrio_mode = true\n" + ("timeout = 1\n" if how == "ini" else ""))
    pytester.makeconftest(
        """
        from tests.time_limits import limit_time

        def pytest_collection_modifyitems(items):
            for item in items:
                limit_time(item)
        """
    )
    pytester.makepyfile(
        f"""
        import pytest
        import trio

        {"@pytest.mark.timeout(1)" if how == "mark" else ""}
        async def test_that_waits():
            try:
                await trio.sleep_forever()
            finally:
                print("what the test says of its servers")

        async def test_after_it():
            await trio.sleep(0)
        """
    )
    result = pytester.runpytest_subprocess(*(["--timeout=1"] if how == "option" else []))
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*await trio.sleep_forever()*", "*TookTooLongError: not done after 0.9 s*"])
    result.stdout.fnmatch_lines(["what the test says of its servers"])
