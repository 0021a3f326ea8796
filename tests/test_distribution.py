"""How tests are given to workers, with workers that are simulated: what each gets, and when it may begin a test."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from tests.distribution import ALONE, LongestFirst, unit_of


@attrs.define(eq=False)
class Worker:
    """Begins a test when it knows the next one, or that there is none."""

    shutting_down: bool = False
    todo: list[int] = attrs.field(factory=list)
    gateway: SimpleNamespace = attrs.field(factory=lambda: SimpleNamespace(id="gw"))

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.todo += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def may_begin(self) -> bool:
        return len(self.todo) > 1 or (bool(self.todo) and self.shutting_down)


@attrs.frozen
class Options:
    """What the scheduler asks pytest."""

    workers: list[str]

    def getvalue(self, name: str) -> list[str]:
        assert name == "tx"
        return self.workers


def names(sizes: list[int], alone: int) -> list[str]:
    quiet = next(iter(ALONE))
    found = [f"{quiet}/test_latency.py::test_{number}" for number in range(alone)]
    return found + [f"tests/test_{file}.py::test_{number}" for file, size in enumerate(sizes) for number in range(size)]


def run_all(
    workers: list[Worker], tests: list[str], rng: random.Random, *, crashes: int
) -> list[tuple[Worker, str, int]]:
    """Who ran which test to its end or crashed in it, and how many other workers had tests left then."""
    made: Any = LongestFirst(Options(["popen"] * len(workers)))  # type: ignore[arg-type]
    for worker in workers:
        made.add_node(worker)
        made.add_node_collection(worker, tests)
    made.schedule()
    ran: list[tuple[Worker, str, int]] = []
    while ready := [worker for worker in made.nodes if worker.may_begin()]:
        worker = rng.choice(ready)
        index = worker.todo.pop(0)
        ran.append((worker, tests[index], sum(bool(each.todo) for each in made.nodes if each is not worker)))
        if crashes and rng.random() < 0.2:
            crashes -= 1
            worker.shutting_down = True  # as a worker that is down
            assert made.remove_node(worker) == tests[index]
            made.add_node(replacement := Worker())
            made.add_node_collection(replacement, tests)
            made.schedule()
        else:
            made.mark_test_complete(worker, index)
    assert not made.has_pending
    assert made.tests_finished
    return ran


@given(st.lists(st.integers(1, 5), max_size=8), st.integers(0, 5), st.integers(1, 5), st.integers(0, 3), st.randoms())
def test_every_test_runs_once_and_those_that_measure_run_when_nothing_else_does(
    sizes: list[int], alone: int, count: int, crashes: int, rng: random.Random
) -> None:
    tests = names(sizes, alone)
    if not tests:
        return
    ran = run_all([Worker() for _ in range(count)], tests, rng, crashes=crashes)
    assert sorted(name for _, name, _ in ran) == sorted(tests)
    for _, name, others in ran:
        assert unit_of(name) != "alone" or others == 0
    if not crashes:
        of_unit: dict[str, set[int]] = {}
        for worker, name, _ in ran:
            of_unit.setdefault(unit_of(name), set()).add(id(worker))
        assert all(len(who) == 1 for who in of_unit.values())


def test_a_directory_that_shares_something_is_one_unit() -> None:
    assert unit_of("tests/spark/test_jvm.py::test_x[a::b]") == "Spark, reading"
    assert unit_of("tests/spark/test_cli_sql.py::test_x") == unit_of("tests/spark/test_drain.py::test_x")
    assert unit_of("tests/sparkling/test_x.py::test_x") == "tests/sparkling/test_x.py"
    assert unit_of("tests/abuse/test_connections.py::test_x") == "alone"
