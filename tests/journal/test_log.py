"""The log: one line an event, no flood, and no client can forge lines in it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
import trio
from structlog.contextvars import bind_contextvars
from trio.testing import MockClock

from journal.settings.values import LogConfig, LogFormat, LogLevel
from journal.telemetry.log import LINES_PER_PERIOD, PERIOD_S, RateLimit, configure_log


class Err:
    """What went to standard error so far."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured = captured
        self._text = ""

    @property
    def text(self) -> str:
        self._text += self._captured.readouterr().err
        return self._text

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def err(capsys: pytest.CaptureFixture[str]) -> Iterator[Err]:
    """Standard error; the process's log is as it was afterwards."""
    before, library = structlog.get_config(), logging.getLogger("journal")
    kept = (library.handlers[:], library.level, library.propagate)
    yield Err(capsys)
    structlog.configure(**before)
    library.handlers[:], library.level, library.propagate = kept


def log() -> Any:
    return structlog.get_logger("journal")


AS_JSON = LogConfig(format=LogFormat.JSON)


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def shown() -> tuple[Callable[..., bool], RateLimit, Clock]:
    """Tells whether a line was let through."""
    clock = Clock()
    limit = RateLimit(clock)

    def show(event: str, **values: Any) -> bool:
        try:
            limit(None, "warning", {"event": event, "level": "warning", **values})
        except structlog.DropEvent:
            return False
        return True

    return show, limit, clock


def test_an_event_is_one_line_with_its_values(err: Err) -> None:
    configure_log(AS_JSON)
    log().info("recovered", entries=3)
    (line,) = err.lines
    assert (line["event"], line["level"], line["entries"]) == ("recovered", "info", 3)
    assert line["timestamp"].endswith("Z")


def test_a_line_says_whose_connection_it_is_about(err: Err) -> None:
    configure_log(AS_JSON)

    async def connection(number: int) -> None:
        bind_contextvars(peer=f"10.0.0.{number}:1", connection=number)
        await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(request)

    async def request() -> None:
        log().warning("connection closed", reason="it broke the rules")

    async def server() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection, 1)
            nursery.start_soon(connection, 2)
        log().info("stopped")

    trio.run(server)
    *closed, stopped = err.lines
    assert sorted((line["peer"], line["connection"]) for line in closed) == [("10.0.0.1:1", 1), ("10.0.0.2:1", 2)]
    assert "peer" not in stopped


@pytest.mark.parametrize("form", LogFormat)
def test_an_exception_is_in_the_line_too(err: Err, form: LogFormat) -> None:
    configure_log(LogConfig(format=form))
    try:
        try:
            raise OSError(5, "Input/output error")
        except OSError as error:
            raise ExceptionGroup("two", [ValueError("first\nof all"), KeyError("second")]) from error
    except ExceptionGroup as error:
        log().error("unexpected error", exc_info=error)
        log().exception("once more")
    text = err.text
    assert len(text.splitlines()) == 2
    for line in text.splitlines():
        for part in ("ExceptionGroup", "first", "KeyError", "Input/output error", "test_log.py"):
            assert part in line


@pytest.mark.parametrize("form", LogFormat)
@pytest.mark.parametrize("said", ["a\nforged line", "a\r\x1b[31mred", "a\u2028b", "a\x85b"])
def test_what_others_say_cannot_become_a_line_of_its_own(err: Err, form: LogFormat, said: str) -> None:
    configure_log(LogConfig(format=form))
    log().warning("connection closed", client=said)
    log().warning(f"a library says {said}")
    logging.getLogger("journal").warning("a library says %s", said)
    assert len(err.text.splitlines()) == 3
    assert "\x1b[31mred" not in err.text


def test_lines_below_the_level_are_not_shown(err: Err) -> None:
    configure_log(LogConfig(level=LogLevel.WARNING, format=LogFormat.JSON))
    log().info("recovered")
    logging.getLogger("journal.conversion").info("sealed")
    logging.getLogger("journal.conversion").warning("not sealed")
    assert [line["event"] for line in err.lines] == ["not sealed"]


def test_an_event_that_comes_again_and_again_is_counted(
    shown: tuple[Callable[..., bool], RateLimit, Clock],
) -> None:
    show, _, clock = shown
    assert [show("refused") for _ in range(LINES_PER_PERIOD + 5)] == [True] * LINES_PER_PERIOD + [False] * 5
    # Others are told all the same.
    assert show("disk full")
    clock.now_s += PERIOD_S
    assert show("refused")


def test_the_next_line_says_how_many_were_left_out(err: Err, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(RateLimit.__init__, "__defaults__", (clock,))
    configure_log(AS_JSON)
    for number in range(LINES_PER_PERIOD + 7):
        log().warning("refused", number=number)
    clock.now_s += PERIOD_S
    log().warning("refused", number="next")
    *others, last = err.lines
    assert len(others) == LINES_PER_PERIOD
    assert (last["number"], last["left_out"]) == ("next", 7)


def test_lines_of_a_library_are_one_event_by_their_template(err: Err) -> None:
    configure_log(AS_JSON)
    for number in range(LINES_PER_PERIOD + 3):
        logging.getLogger("journal").warning("%s stays until the next start", number)
    assert len(err.lines) == LINES_PER_PERIOD


async def test_suppressed_lines_are_counted_also_if_nothing_follows(
    err: Err, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(RateLimit.__init__, "__defaults__", (trio.current_time,))
    limit = configure_log(AS_JSON)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limit.keep_telling)
        for _ in range(LINES_PER_PERIOD + 3):
            log().warning("refused")
        await trio.sleep(2 * PERIOD_S + 1)
        nursery.cancel_scope.cancel()
    last = err.lines[-1]
    assert (last["event"], last["of"], last["left_out"], last["level"]) == (
        "lines were left out",
        "refused",
        3,
        "warning",
    )
    assert len(err.lines) == LINES_PER_PERIOD + 1


def test_at_the_end_all_counts_are_logged(err: Err) -> None:
    limit = configure_log(AS_JSON)
    for _ in range(LINES_PER_PERIOD + 3):
        log().warning("refused")
    limit.tell()
    assert len(err.lines) == LINES_PER_PERIOD
    limit.tell(also_unfinished=True)
    limit.tell(also_unfinished=True)
    assert [line.get("left_out") for line in err.lines[LINES_PER_PERIOD:]] == [3]


def test_texts_that_always_differ_neither_fill_the_memory_nor_the_log(
    shown: tuple[Callable[..., bool], RateLimit, Clock],
) -> None:
    show, limit, _ = shown
    passed = sum(show(f"text {number}") for number in range(5_000))
    assert passed == 1_000 + LINES_PER_PERIOD
    assert len(limit._windows) <= 1_001
