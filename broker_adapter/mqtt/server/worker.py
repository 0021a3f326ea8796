"""One of several processes of a broker: it runs a broker, and obeys the supervisor that started it.

It gets its settings and requests from standard input, and answers on standard output. When its input ends, its
supervisor wants it to stop or has died, and it stops in order.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from http import HTTPStatus
from typing import Final

import structlog
import trio

from broker_adapter.mqtt.config import BrokerConfig
from broker_adapter.mqtt.server.member import Control, Member
from broker_adapter.mqtt.server.process import run_broker
from broker_adapter.mqtt.server.worker_lines import (
    Answer,
    Failed,
    Line,
    LineReader,
    Question,
    Ready,
    Reload,
    Start,
    encode,
)
from journal.telemetry.http_pages import Page, Reply, Resource

_MOST_TO_STOP_S: Final = 30
"""A process that has not ended so long after its input is killed by the system."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


async def run_worker(outcome_of: Callable[[BaseException], Failed]) -> int:
    """Run one process of a broker until its supervisor wants its end or has died; return the exit status.

    Args:
        outcome_of: Describes an error that ends a broker.
    """
    received, sent = _take_standard_streams()
    async with received, sent:
        lines = LineReader(received).lines()
        start = await anext(lines, None)
        if start is None:
            return 0
        assert isinstance(start, Start)
        structlog.contextvars.bind_contextvars(process=start.number)
        worker = _Worker(start.settings, lines, sent)
        try:
            async with trio.open_nursery() as nursery:
                addresses = await nursery.start(worker.run, start.number)
                if addresses:
                    await worker.send(Ready())
        except Exception as error:  # noqa: BLE001 the supervisor reports it
            failure = outcome_of(error)
            await worker.send(failure)
            return failure.status
        return 0


def _take_standard_streams() -> tuple[trio.lowlevel.FdStream, trio.lowlevel.FdStream]:
    """The pipes of the supervisor, so that no library reads or writes there by accident."""
    received, sent = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return trio.lowlevel.FdStream(received), trio.lowlevel.FdStream(sent)


class _Worker:
    def __init__(self, settings: BrokerConfig, lines: AsyncIterator[Line], sent: trio.abc.SendStream) -> None:
        self._settings = settings
        self._lines = lines
        self._sent = sent
        self._sending = trio.Lock()
        self._is_cut = False

    async def run(self, number: int, *, task_status: trio.TaskStatus[list[str]]) -> None:
        member = Member(number, self._obey)
        await run_broker(self._settings, lambda: self._settings, member=member, task_status=task_status)

    async def send(self, line: Line) -> None:
        """Send a line to the supervisor; nothing if it has died, which the end of the input says as well."""
        async with self._sending:
            if self._is_cut:
                return
            # If this is cancelled, nothing may follow the part of a line that was sent.
            self._is_cut = True
            try:
                await self._sent.send_all(encode(line))
            except trio.BrokenResourceError:
                log.debug("the supervisor has gone")
            else:
                self._is_cut = False

    async def _obey(self, control: Control) -> None:
        pages = control.pages
        async with trio.open_nursery() as answering:
            async for line in self._lines:
                match line:
                    case Question():
                        answering.start_soon(self._answer, pages, line)
                    case Reload(settings):
                        self._settings = settings
                        await control.reload()
            # If it hangs at its end there may be no supervisor any more that kills it.
            signal.alarm(_MOST_TO_STOP_S)
            control.request_stop("its supervisor")
            await trio.sleep_forever()

    async def _answer(self, pages: Mapping[str, Page | Resource], question: Question) -> None:
        try:
            page: Page | Resource | None = pages.get(question.request.path)
            if isinstance(page, Resource):
                page = page.methods.get(question.method)
            if page is None:
                reply = Reply(b"there is no such page\n", HTTPStatus.NOT_FOUND)
            else:
                reply = await page(question.request)
        except Exception:
            log.exception("unexpected error", page=question.request.path)
            reply = Reply(b"an error in the broker; its log has it\n", HTTPStatus.INTERNAL_SERVER_ERROR)
        await self.send(Answer(question.number, reply))
