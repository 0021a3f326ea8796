"""Refused acts are recorded, a limited number for each principal, so that none hides those of another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from journal.access.audit import AuditEntry, AuditLog
from journal.access.refused_acts import LINES_PER_PERIOD, LINES_PER_PRINCIPAL, PERIOD_S, RefusedActs


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
def refused(path: Path, clock: Clock) -> RefusedActs:
    return RefusedActs(AuditLog(str(path)), clock)


def write(refused: RefusedActs, principal: str = "anna", peer: str = "10.0.0.1:5000", **names: str) -> None:
    fields = {"act": "delete_shard", "target": "x", "outcome": "not_authorized", **names}
    refused.write(AuditEntry(principal=principal, peer=peer, **fields))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_is_a_line_with_what_it_names(refused: RefusedActs, path: Path) -> None:
    write(refused, group="g")
    (line,) = lines(path)
    assert line.pop("time_us") > 0
    assert line == {
        "principal": "anna",
        "peer": "10.0.0.1:5000",
        "act": "delete_shard",
        "target": "x",
        "outcome": "not_authorized",
        "group": "g",
    }


def test_a_principal_that_repeats_it_hides_no_other_and_is_counted(
    refused: RefusedActs, path: Path, clock: Clock
) -> None:
    for _ in range(1000):
        write(refused)
    write(refused, "bob")
    assert len(lines(path)) == LINES_PER_PRINCIPAL + 1
    assert lines(path)[-1]["principal"] == "bob"
    clock.now += PERIOD_S
    write(refused)
    counted, again = lines(path)[-2:]
    assert (counted["principal"], counted["left_out"]) == ("anna", 1000 - LINES_PER_PRINCIPAL)
    assert again["act"] == "delete_shard"


def test_peers_without_a_name_count_by_their_network_and_together(refused: RefusedActs, path: Path) -> None:
    for host in range(100):
        for _ in range(LINES_PER_PRINCIPAL + 1):
            write(refused, "", f"10.0.0.{host}:5000")
    assert len(lines(path)) == LINES_PER_PERIOD
    assert lines(path)[LINES_PER_PRINCIPAL]["peer"] == "10.0.0.1:5000"


def test_long_names_are_cut(refused: RefusedActs, path: Path) -> None:
    write(refused, target="x" * 100_000, cursor="c" * 100_000, group="g" * 100_000)
    assert path.stat().st_size < 4_000
