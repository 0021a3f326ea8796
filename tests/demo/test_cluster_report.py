"""The outcome of a run with several servers, and the report about it: what it must never let pass."""

from __future__ import annotations

from pathlib import Path

import attrs
import msgspec
import pytest

from demo.cluster.__main__ import main
from demo.cluster.outcome import CUT, KILLED, ClusterOutcome, Observations, Takeover, late, median
from demo.cluster.report import document, render, summary, verdict
from demo.evidence.agreement import RetainedResult
from demo.evidence.check import check_topic
from demo.processes import seaweedfs
from demo.results.figures import Percentiles
from tests.demo.test_check import TOPIC, evidence, found
from tests.demo.test_report import shown


def takeover(cause: str, pause_s: float) -> Takeover:
    return Takeover(cause=cause, former_owner="server-1", owner="server-2", pause_s=pause_s)


def outcome(**changes: object) -> ClusterOutcome:
    return attrs.evolve(
        ClusterOutcome(
            cut_by="its cable was pulled",
            is_timed=True,
            topics=[check_topic(evidence())],
            records={name: {TOPIC: 3} for name in ("server-2", "server-3", "server-1")},
            differences=[],
            retained=[RetainedResult(topic=TOPIC, number=2, given={"broker-1": [2]}, wrong=[])],
            damages=[],
            observed=Observations(
                takeovers=[takeover(KILLED, 1.5), takeover(CUT, 6.5), takeover(KILLED, 2.5), takeover(KILLED, 1.25)],
                emptied="server-1",
                rejoin_s=3.25,
                rejoin_entries=1_234,
                cut_s=7.5,
                mended_s=0.75,
                run_s=80.4,
            ),
            published_bytes=4_000_000,
            acknowledging={"QoS 1": Percentiles(3, 1.0, 2.0, 3.0), "QoS 2": Percentiles(3, 0.5, 0.6, 900.0)},
            delivering=Percentiles(3, 2.0, 5.0, 800.0),
        ),
        **changes,
    )


def test_what_is_all_there_holds() -> None:
    assert outcome().broken == []
    told = verdict(outcome()).plain
    assert told.startswith("HELD: all 3 acknowledged messages are on each of 3 servers")
    assert "4 takeovers within their goals" in told


def test_a_lost_message_is_reported() -> None:
    lost = outcome(topics=[check_topic(evidence(found=found(0, 1)))])

    assert f"{TOPIC}: 1 acknowledged and not in the store" in lost.broken
    assert "NOT HELD" in verdict(lost).plain
    assert document(lost)["held"] is False


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"differences": ["server-3 has less"]}, "server-3 has less"),
        ({"damages": ["server-3: a file is missing"]}, "offline check: server-3: a file is missing"),
        (
            {"retained": [RetainedResult(topic=TOPIC, number=2, given={"b": [1]}, wrong=["b"])]},
            f"{TOPIC}: b gave [1] as the retained message; it is message 2, the last one",
        ),
        ({"topics": []}, "nothing was published: there is no telemetry to read on this machine"),
        (
            {"observed": Observations(takeovers=[takeover(CUT, 8.01)])},
            "server-2 took over 8.01 s after server-1 was cut; the goal is 8 s",
        ),
    ],
)
def test_whatever_is_broken_is_reported(changes: dict[str, object], line: str) -> None:
    assert outcome(**changes).broken == [line]


def test_a_late_takeover_is_excused_only_where_times_do_not_count() -> None:
    late_ones = {"observed": Observations(takeovers=[takeover(CUT, 8.01)])}

    assert outcome(**late_ones, is_timed=False).broken == []
    assert "within their goals" not in verdict(outcome(**late_ones, is_timed=False)).plain
    assert "NOT HELD" in verdict(outcome(**late_ones)).plain


def test_takeovers_have_goals() -> None:
    assert late([takeover(KILLED, 5.0), takeover(KILLED, 2.0), takeover(KILLED, 1.0), takeover(CUT, 8.0)]) == []
    assert late([takeover(KILLED, 5.5), takeover(KILLED, 2.0), takeover(KILLED, 1.0)]) == [
        "server-2 took over 5.50 s after server-1 was killed; the goal is 5 s"
    ]
    assert late([takeover(KILLED, 1.0), takeover(CUT, 8.25)]) == [
        "server-2 took over 8.25 s after server-1 was cut; the goal is 8 s"
    ]


def test_a_median_above_its_goal_is_told() -> None:
    seen = Observations(takeovers=[takeover(KILLED, 2.5), takeover(KILLED, 2.25), takeover(KILLED, 1.0)])

    assert "p50 2.25 s (goal 2 s, missed)" in "\n".join(summary(outcome(observed=seen)))


@pytest.mark.parametrize(("seconds", "expected"), [([], 0.0), ([3.0], 3.0), ([3.0, 1.0], 1.0), ([3.0, 1.0, 2.0], 2.0)])
def test_the_median_is_by_the_nearest_rank(seconds: list[float], expected: float) -> None:
    assert median(seconds) == expected


def test_the_table_has_a_column_for_each_server() -> None:
    text = shown(render(outcome()))

    for word in (TOPIC, "server-1", "server-2", "server-3", "retained", "watcher", "replay"):
        assert word in text
    assert "NO" not in text
    wrong = [RetainedResult(topic=TOPIC, number=-1, given={"b": [1]}, wrong=["b"])]
    assert "NO" in shown(render(outcome(retained=wrong)))


def test_the_summary_has_the_figures() -> None:
    text = "\n".join(summary(outcome()))

    for figure in (
        "1.50 s (server-1 to server-2), 2.50 s (server-1 to server-2), 1.25 s (server-1 to server-2)",
        "p50 1.50 s (goal 2 s), longest 2.50 s (goal 5 s)",
        "6.50 s (server-1 to server-2; goal 8 s): its cable was pulled; back after 7.5 s, it followed within 0.75 s",
        "1,234 entries of the log after 3.25 s",
        "took 80 s",
    ):
        assert figure in text


def test_the_document_is_json() -> None:
    told = msgspec.json.decode(msgspec.json.encode(document(outcome())))

    assert told["held"] is True
    assert told["records"]["server-3"] == {TOPIC: 3}
    assert told["observed"]["takeovers"][1]["pause_s"] == 6.5


@pytest.mark.parametrize("arguments", [["--kills", "0"], ["--kills", "many"], ["--rate", "0"], ["--cut", "scissors"]])
def test_what_cannot_be_run_is_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)

    assert exit_info.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_machine_without_seaweedfs_is_told_the_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(seaweedfs.shutil, "which", lambda *_, **__: None)

    assert main(["--directory", str(tmp_path)]) == 1
    assert "SeaweedFS is not installed" in (told := capsys.readouterr().err)
    assert "`make peers` installs it" in told
    assert not list(tmp_path.iterdir())
