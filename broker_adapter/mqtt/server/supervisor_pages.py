"""Health, metrics and administration of a broker of several processes over HTTP: the answers of all as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Final, Protocol

import trio

from broker_adapter.mqtt.server.worker_process import WorkerProcess, WorkerUnansweredError
from broker_adapter.mqtt.telemetry.health import STOPPING
from broker_adapter.mqtt.telemetry.merged_metrics import (
    PROCESS,
    MergedMetrics,
    decode_families,
    joined,
    labelled,
    supervisor_metrics,
)
from broker_adapter.mqtt.telemetry.metrics import (
    ADMISSION_PATH,
    FAMILIES_PATH,
    LIVE_PATH,
    METRICS_PATH,
    READY_PATH,
    process_figures,
)
from journal.telemetry.exposition import CONTENT_TYPE, Family, page_of
from journal.telemetry.http_pages import Page, Reply, Request, Resource, health_reply

_PATIENCE_S: Final = 2.0
_CHANGE_S: Final = 75.0
"""Requests to the administration may wait for 60 s."""

_NOBODY: Final = Reply(b"no process of the broker answers\n", HTTPStatus.SERVICE_UNAVAILABLE)
_SUPERVISOR: Final = "supervisor"


class Processes(Protocol):
    """The processes of a broker."""

    @property
    def workers(self) -> Mapping[int, WorkerProcess]:
        """The last process of each number that was started, also if it has ended."""
        ...

    @property
    def restart_counts(self) -> Counter[int]:
        """How often the process of each number was started again."""
        ...

    @property
    def is_stopping(self) -> bool:
        """Whether all processes are stopping."""
        ...


class SupervisorPages:
    """The pages of a broker of several processes.

    Args:
        processes: The processes.
        administration: The pages of the administration, as one process has them. One process answers for all, as what
            they show and change is in the store.
        merged: The metrics of all.
    """

    def __init__(
        self, processes: Processes, administration: Mapping[str, Page | Resource], merged: MergedMetrics
    ) -> None:
        self._processes = processes
        self._merged = merged
        self.pages: dict[str, Page | Resource] = {
            LIVE_PATH: self._livez,
            READY_PATH: self._readyz,
            METRICS_PATH: self._metrics,
            **{path: self._forwarded(page) for path, page in administration.items()},
        }

    def _forwarded(self, page: Page | Resource) -> Page | Resource:
        if not isinstance(page, Resource):
            return partial(self._forward, "GET")
        return Resource({method: partial(self._forward, method) for method in page.methods}, page.max_body_bytes)

    async def _forward(self, method: str, request: Request) -> Reply:
        worker = self._first()
        if worker is None:
            return _NOBODY
        try:
            return await worker.ask(request, method, within_s=_CHANGE_S)
        except WorkerUnansweredError:
            text = f"process {worker.number} of the broker does not answer, and may have done it or not\n"
            return Reply(text.encode(), HTTPStatus.SERVICE_UNAVAILABLE)

    def _first(self) -> WorkerProcess | None:
        """A process that can answer for all, if possible one that accepts clients."""
        running = [worker for worker in self._processes.workers.values() if worker.is_running]
        return next((worker for worker in running if worker.ready.is_set()), running[0] if running else None)

    async def _livez(self, request: Request) -> Reply:
        # One that has not accepted clients yet may still load its program.
        asked = [worker for worker in self._processes.workers.values() if worker.is_running and worker.ready.is_set()]
        replies = await self._ask(asked, request)
        silent = [str(worker.number) for worker in asked if worker.number not in replies and worker.is_running]
        if silent:
            text = f"no answer from process {', '.join(silent)}\n"
            return Reply(text.encode(), HTTPStatus.SERVICE_UNAVAILABLE)
        return Reply(b"ok\n")

    async def _readyz(self, request: Request) -> Reply:
        workers = self._processes.workers
        replies = await self._ask([worker for worker in workers.values() if worker.is_running], request)
        reasons = [STOPPING] if self._processes.is_stopping else []
        for number, worker in sorted(workers.items()):
            reply = replies.get(number)
            if not worker.is_running:
                reasons.append(f"process {number}: it is being started")
            elif reply is None:
                reasons.append(f"process {number}: it does not answer")
            elif reply.status != HTTPStatus.OK:
                reasons.append(f"process {number}: {reply.body.decode().strip().removeprefix('not ready: ')}")
        return health_reply(reasons)

    async def _metrics(self, request: Request) -> Reply:
        if request.query:
            return await self._metrics_of_one(request)
        first = self._first()
        if first is None:
            return _NOBODY
        try:
            admission = await first.ask(_at(request, ADMISSION_PATH), within_s=_CHANGE_S)
        except WorkerUnansweredError:
            return _NOBODY
        if admission.status != HTTPStatus.OK:
            return admission
        running = [worker for worker in self._processes.workers.values() if worker.is_running]
        replies = await self._ask(running, _at(request, FAMILIES_PATH))
        present = {
            number: decode_families(reply.body) for number, reply in replies.items() if reply.status == HTTPStatus.OK
        }
        for number, families in present.items():
            if self._processes.workers[number].is_running:
                self._merged.note(number, families)
        families = joined([*self._of_supervisor(present), *self._merged.families(present)])
        families = joined([*families, *labelled(process_figures(), _SUPERVISOR)])
        return Reply(page_of(families), content_type=CONTENT_TYPE)

    async def _metrics_of_one(self, request: Request) -> Reply:
        """The page of the process that the query names, as a broker in one process has it."""
        key, _, number = request.query.partition("=")
        worker = self._processes.workers.get(int(number)) if key == PROCESS and number.isdecimal() else None
        if worker is None:
            text = f"only process=NUMBER can be asked for, from 1 to {len(self._processes.workers)}\n"
            return Reply(text.encode(), HTTPStatus.NOT_FOUND)
        try:
            return await worker.ask(request, within_s=_CHANGE_S)
        except WorkerUnansweredError:
            return _NOBODY

    def _of_supervisor(self, present: Mapping[int, list[Family]]) -> list[Family]:
        numbers = sorted(self._processes.workers)
        restart_counts = self._processes.restart_counts
        return supervisor_metrics(
            {number: restart_counts[number] for number in numbers},
            absent=[number for number in numbers if number not in present],
        )

    async def _ask(self, workers: list[WorkerProcess], request: Request) -> dict[int, Reply]:
        """The answers of those that answer in time, by the numbers of the processes."""
        replies: dict[int, Reply] = {}

        async def ask(worker: WorkerProcess) -> None:
            try:
                replies[worker.number] = await worker.ask(request, within_s=_PATIENCE_S)
            except WorkerUnansweredError:
                return

        async with trio.open_nursery() as asking:
            for worker in workers:
                asking.start_soon(ask, worker)
        return dict(sorted(replies.items()))


def _at(request: Request, path: str) -> Request:
    return Request(path, request.authorization, request.host, request.query, request.headers)
