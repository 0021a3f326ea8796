"""Refused logins are recorded, and a storm of them does not fill the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from journal.access.audit import AuditLog
from journal.access.refused_logins import LINES_PER_NETWORK, LINES_PER_PERIOD, PERIOD_S, RefusedLogins


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def refused(path: Path, clock: Clock) -> RefusedLogins:
    return RefusedLogins(AuditLog(str(path)), clock)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_is_a_line(refused: RefusedLogins, path: Path) -> None:
    refused.write(user="anna", peer="10.0.0.1:5000")
    (line,) = lines(path)
    assert line.pop("time_us") > 0
    assert line == {
        "principal": "",
        "peer": "10.0.0.1:5000",
        "act": "login",
        "target": "anna",
        "outcome": "authentication_failed",
    }


def test_a_client_that_guesses_gets_a_few_lines_and_hides_no_other_client(refused: RefusedLogins, path: Path) -> None:
    for port in range(1000):
        refused.write(user="", peer=f"10.0.0.1:{port + 1}")
    refused.write(user="anna", peer="10.0.0.2:1")
    found = lines(path)
    assert [line["peer"] for line in found] == [
        *(f"10.0.0.1:{port + 1}" for port in range(LINES_PER_NETWORK)),
        "10.0.0.2:1",
    ]


def test_who_has_a_network_of_addresses_is_one(refused: RefusedLogins, path: Path) -> None:
    for host in range(100):
        refused.write(user="", peer=f"[2001:db8::{host:x}]:1")
        refused.write(user="", peer=f"2001:db8::1:{host:x}:1")
    assert len(lines(path)) == LINES_PER_NETWORK


def test_a_storm_from_everywhere_has_so_many_lines_a_period_and_is_counted(
    refused: RefusedLogins, path: Path, clock: Clock
) -> None:
    for host in range(1000):
        refused.write(user="", peer=f"10.1.{host // 250}.{host % 250}:1")
    assert len(lines(path)) == LINES_PER_PERIOD
    refused.tell()
    assert len(lines(path)) == LINES_PER_PERIOD, "the period has not ended"
    clock.now += PERIOD_S
    refused.write(user="anna", peer="10.0.0.2:1")
    *_, told, last = lines(path)
    assert told["left_out"] == 1000 - LINES_PER_PERIOD
    assert "left_out" not in last
    refused.tell(also_unfinished=True)
    assert len(lines(path)) == LINES_PER_PERIOD + 2, "nothing was left out since"


def test_a_storm_that_ends_is_counted_all_the_same(refused: RefusedLogins, path: Path, clock: Clock) -> None:
    for _ in range(LINES_PER_NETWORK + 5):
        refused.write(user="", peer="10.0.0.1:1")
    clock.now += PERIOD_S
    refused.tell()
    assert lines(path)[-1]["left_out"] == 5


def test_where_no_record_is_kept_nothing_happens(clock: Clock) -> None:
    refused = RefusedLogins(AuditLog(), clock)
    refused.write(user="anna", peer="10.0.0.1:1")
    refused.tell(also_unfinished=True)
