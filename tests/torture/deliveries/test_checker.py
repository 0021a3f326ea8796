"""The checker of deliveries finds each broken promise, and none where all were kept.

Random histories of a correct queue have no anomaly, whatever was purged, put back, killed and switched in them; a
single change of one is found. Each defect that was found by attacks from outside is here as the history that it made,
beside the nearest sound one (`DEFECTS`), or, where it concerns MQTT subscribers, with the ledger of MQTT clients
(`tests.mqtt.cluster.test_ledger`). Those marked with an asterisk are also put back into the code of the queue, and
named by what random steps with it wrote down (`tests.torture.test_queue_steps`).

===================================================================== ============ ===================================
defect                                                                checker      what it says
===================================================================== ============ ===================================
a racing SUBSCRIBE misses the newest retained message                 MQTT ledger  was retained when it subscribed
retained messages that wait die with the connection                   MQTT ledger  was retained when it subscribed
the position of a session runs ahead of commits under way             MQTT ledger  acknowledged messages did not come
a message of QoS 2 comes to two members of a group                    MQTT ledger  came more than once
a broker that stands still keeps its shares                           MQTT ledger  the longest wait
a record that fits into no packet stops subscribers                   MQTT ledger  acknowledged messages did not come
a delayed or retained message is stored twice for a lost answer       MQTT ledger  came 2 times, it was sent 1 times
a change of a queue's mode takes no effect *                          deliveries   lost
offsets reserved for memory count as records *                        deliveries   wrong count
the same: writers refuse records for them                             deliveries   refused without a reason
a reply of a sink (any error, recursion, the year 9999) ends a broker deliveries   ended by itself
a queue refuses all after its full shard was emptied or deleted       deliveries   refused without a reason
a batch is added at each retry                                        deliveries   doubled
a record is at the sink and a dead letter, and is put back            deliveries   doubled
a refused row is overtaken                                            deliveries   reordered
a queue whose driver was killed cannot be deleted, or late            deliveries   refused without a reason, held up
decimals of JSON change                                               deliveries   changed
a purge counts twice *                                                deliveries   wrong count
a record over which a web service fails blocks its queue              deliveries   held up
a driver that lived through a restore goes on *                       deliveries   lost
rows of a task whose COMMIT was not answered are there twice          deliveries   doubled
a shard that was missing for one run is exported again                deliveries   doubled
a deleted shard is passed over                                        deliveries   loss not told
a shard that was made again is passed over                             deliveries   lost
a reader of the directory makes the start of a server fail            deliveries   refused without a reason
a topic comes back as a number                                        deliveries   changed
===================================================================== ============ ===================================
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
import pytest

from tests.torture.deliveries.checker import check
from tests.torture.deliveries.correct_queue import MUTATIONS, CorrectQueue
from tests.torture.deliveries.history import (
    LIFE_OFFSETS,
    NEVER,
    Arrival,
    Command,
    Disturbance,
    Ending,
    History,
    Interval,
    Message,
    ModeChange,
    Offer,
    Outcome,
    Progress,
    Promises,
    Purge,
    PutBack,
    Restore,
    Run,
    StoreDeath,
    Tally,
    Trim,
)

SEEDS = range(40)
OUT = Disturbance(began_s=5, ended_s=60, what="the sink is out")
KILLED = StoreDeath(began_s=30, ended_s=31)
PURGED = Purge(began_s=20, ended_s=21)
PUT_BACK = PutBack(began_s=40, ended_s=41, count=1)
IN_MEMORY = {"is_in_memory": True}


def offered(
    count: int,
    *,
    source: str = "t",
    poison: Iterable[int] = (),
    refused: Iterable[int] = (),
    writes: int = 1,
    content: str = "",
) -> list[Offer]:
    """Messages that were handed over and answered one a second, from second 10 on."""
    return [
        Offer(
            Message(source, number),
            10.0 + number,
            10.5 + number,
            Outcome.REFUSED if number in refused else Outcome.OK,
            writes=writes,
            content=content,
            is_poison=number in poison,
        )
        for number in range(count)
    ]


def arrived(*numbers: int, source: str = "t", content: str = "") -> list[Arrival]:
    """Messages whose offsets are their numbers."""
    return [Arrival(Message(source, number), number, content=content) for number in numbers]


def at(message: int, offset: int, at_s: float = 0.0) -> Arrival:
    return Arrival(Message("t", message), offset, at_s)


def tally(next_offset: int, *, letters: int = 0, **counts: int) -> Tally:
    return Tally(next_offset, next_offset, Counter(counts), letters)


def history(
    offers: Sequence[Offer],
    arrivals: Sequence[Arrival],
    *events: Interval,
    letters: Sequence[Arrival] = (),
    progress: Sequence[tuple[float, int]] = (),
    endings: Sequence[Ending] = (),
    counted: Tally | None = None,
    **promises: object,
) -> History:
    return History(
        Promises(**promises),  # type: ignore[arg-type]
        {offer.message: offer for offer in offers},
        list(arrivals),
        list(letters),
        list(events),
        [Progress(*each) for each in progress],
        list(endings),
        counted,
    )


def kinds(found: History) -> set[str]:
    return {anomaly.kind for anomaly in check(found)}


def switched(began_s: float, ended_s: float, *, is_file: bool) -> ModeChange:
    return ModeChange(began_s=began_s, ended_s=ended_s, is_file=is_file)


def ran(began_s: float, outcome: Outcome = Outcome.OK, *, passes_over_loss: bool = False) -> Run:
    return Run(began_s=began_s, ended_s=began_s + 1, outcome=outcome, passes_over_loss=passes_over_loss)


def trimmed(before: float, *, source: str = "t", began_s: float = 20) -> Trim:
    return Trim(began_s=began_s, ended_s=began_s + 1, source=source, before=before)


def deleted(began_s: float, ended_s: float, outcome: Outcome = Outcome.OK) -> Command:
    return Command(began_s=began_s, ended_s=ended_s, what="delete", outcome=outcome, within_s=13)


def again(message: int, offset: int) -> Arrival:
    """In the life of the store that began with a restore."""
    return at(message, offset + LIFE_OFFSETS)


SET_BACK = Restore(began_s=19.6, ended_s=19.9, backup_began_s=14.6, backup_ended_s=14.9)
"""To a backup with the messages 0 to 4."""
PASSED_OVER = ran(40, passes_over_loss=True)
EXPORT = {"numbers_are_offsets": False, "has_order": False}

DEFECTS: dict[str, tuple[str, History, History]] = {
    # Cache queues
    "a change of mode from memory to file takes no effect": (
        "lost",
        history(offered(5), arrived(0, 1), switched(0, 1, is_file=True), KILLED, **IN_MEMORY),
        history(offered(5), arrived(0, 1), switched(40, 41, is_file=True), KILLED, **IN_MEMORY),
    ),
    "an empty queue in memory refuses all after a crash": (
        "refused without a reason",
        history(offered(9, refused=[8]), arrived(*range(8)), KILLED, progress=[(17.9, 8)], most_records=5),
        history(offered(9, refused=[8]), arrived(*range(8)), KILLED, progress=[(17.9, 2)], most_records=5),
    ),
    "reserved offsets are counted as lost records": (
        "wrong count",
        history(
            offered(5), arrived(0, 1), KILLED, counted=tally(1 << 20, confirmed=2, lost=1 << 20), is_in_memory=True
        ),
        history(offered(5), arrived(0, 1), KILLED, counted=tally(1 << 20, confirmed=2, lost=3), **IN_MEMORY),
    ),
    "a queue that was full when its shard was emptied or deleted refuses all": (
        "refused without a reason",
        history(
            offered(9, refused=[8]), arrived(7), Purge(began_s=16.6, ended_s=16.8), most_records=5, writers_look_s=1
        ),
        history(
            offered(9, refused=[8]), arrived(7), Purge(began_s=16.6, ended_s=17.8), most_records=5, writers_look_s=1
        ),
    ),
    "a queue whose driver was killed cannot be deleted": (
        "refused without a reason",
        history([], [], deleted(50, 51, Outcome.REFUSED)),
        history([], [], deleted(50, 51)),
    ),
    "a queue whose driver was killed is deleted after a minute": (
        "held up",
        history([], [], deleted(50, 110)),
        history([], [], deleted(50, 59)),
    ),
    "a purge that is killed between its count and the cursor counts twice": (
        "wrong count",
        history(offered(5), arrived(0), PURGED, counted=tally(5, confirmed=1, purged=8)),
        history(offered(5), arrived(0), PURGED, counted=tally(5, confirmed=1, purged=4)),
    ),
    # Bridges and sinks
    "a reply of the sink ends the broker": (
        "ended by itself",
        history(offered(3), arrived(0, 1, 2), endings=[Ending("broker-0", 1)]),
        history(offered(3), arrived(0, 1, 2)),
    ),
    "a batch is added at each retry": (
        "doubled",
        history(offered(3), arrived(0, 1, 2, 0, 1, 2)),
        history(offered(3), arrived(0, 1, 2, 0, 1, 2), most_repeated=3),
    ),
    "a dead letter is brought to the sink": (
        "doubled",
        history(
            offered(3, poison=[1]),
            [*arrived(0, 2), at(1, 3, 30)],
            PUT_BACK,
            letters=[at(1, 3, 20)],
        ),
        history(offered(3, poison=[1]), [*arrived(0, 2), at(1, 3, 50)], PUT_BACK),
    ),
    "a dead letter that the sink has is put back": (
        "doubled",
        history(offered(3), [*arrived(0, 1, 2), at(1, 3)], PUT_BACK),
        history(offered(3, poison=[1]), [*arrived(0, 2), at(1, 3)], PUT_BACK),
    ),
    "a refused row is overtaken": (
        "reordered",
        history(offered(4), arrived(0, 2, 3, 1), most_repeated=4),
        history(offered(4), arrived(0, 1, 2, 3, 1, 2, 3), most_repeated=4),
    ),
    "decimals change silently": (
        "changed",
        history(offered(1, content="0.30000000000000000001"), arrived(0, content="0.3")),
        history(offered(1, content="0.30000000000000000001"), arrived(0, content="0.30000000000000000001")),
    ),
    "a record over which the service fails blocks its queue": (
        "held up",
        history(offered(3), arrived(0, 1, 2), OUT, progress=[(20, 1), (200, 3)], held_up_s=30),
        history(offered(3), arrived(0, 1, 2), OUT, progress=[(20, 1), (80, 3)], held_up_s=30),
    ),
    "a dead letter of an earlier driver is counted and nowhere": (
        "lost",
        history(offered(3, poison=[1]), arrived(0, 2), counted=tally(3, confirmed=2, dead_lettered=1)),
        history(
            offered(3, poison=[1]),
            arrived(0, 2),
            letters=arrived(1),
            counted=tally(3, confirmed=2, dead_lettered=1, letters=1),
        ),
    ),
    "what was acknowledged is not in the queue of a bridge": (
        "lost",
        history(offered(3), arrived(0, 2), KILLED),
        history(offered(3), arrived(0, 2), Purge(began_s=11, ended_s=12)),
    ),
    "a record that was not acknowledged vanishes from the queue": (
        "went nowhere",
        history(offered(3), arrived(0, 1, 2), counted=tally(4, confirmed=4)),
        history(offered(4), arrived(0, 1, 2, 3), counted=tally(4, confirmed=4)),
    ),
    "a driver that lived through a restore confirms offsets that hold other records since": (
        "lost",
        history(offered(12), [*arrived(*range(8)), again(11, 6)], SET_BACK),
        history(offered(12), [*arrived(*range(8)), again(10, 5), again(11, 6)], SET_BACK),
    ),
    # Exports and drains
    "the rows of a task whose COMMIT was not answered are there twice": (
        "doubled",
        history(offered(2), arrived(0, 1, 0, 1), ran(30), **EXPORT),
        history(offered(2), arrived(1, 0), ran(30), **EXPORT),
    ),
    "the place of a shard that was missing for one run is forgotten": (
        "doubled",
        history(offered(3), [*arrived(0, 1), *arrived(0, 1, 2)], ran(15), ran(20), ran(30), **EXPORT),
        history(offered(3), arrived(0, 1, 2), ran(15), ran(20), ran(30), **EXPORT),
    ),
    "a shard that was deleted before it was exported is passed over": (
        "loss not told",
        history(offered(9), arrived(0), ran(10.6), trimmed(NEVER), ran(30), **EXPORT),
        history(offered(9), arrived(0), ran(10.6), trimmed(NEVER), ran(30, Outcome.REFUSED), PASSED_OVER, **EXPORT),
    ),
    "a shard that was made again under its name is passed over": (
        "lost",
        history(
            [*offered(3, source="t#0"), *offered(3, source="t#1")],
            arrived(0, 1, 2, source="t#0"),
            *(ran(15), trimmed(NEVER, source="t#0"), ran(30)),
            **EXPORT,
        ),
        history(
            [*offered(3, source="t#0"), *offered(3, source="t#1")],
            [*arrived(0, 1, 2, source="t#0"), *arrived(0, 1, 2, source="t#1")],
            *(ran(15), trimmed(NEVER, source="t#0"), ran(30)),
            **EXPORT,
        ),
    ),
    "the start of a server fails because a run looks into its directory": (
        "refused without a reason",
        history([], [], Command(began_s=0, ended_s=1, what="start", outcome=Outcome.REFUSED, within_s=60)),
        history([], [], Command(began_s=0, ended_s=1, what="start", outcome=Outcome.OK, within_s=60)),
    ),
    "a topic that looks like a number comes back as one": (
        "changed",
        history(offered(1, content="007"), arrived(0, content="7"), **EXPORT),
        history(offered(1, content="007"), arrived(0, content="007"), **EXPORT),
    ),
}
"""By what went wrong: the kind of anomaly that names it, the history that shows it, and the nearest sound one."""


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_is_named_and_its_sound_neighbour_is_not(defect: str) -> None:
    kind, broken, sound = DEFECTS[defect]
    assert kind in kinds(broken)
    assert check(sound) == []


@pytest.mark.parametrize("has_excuses", [False, True])
def test_random_histories_of_a_correct_queue_have_no_anomaly(has_excuses: bool) -> None:
    for seed in SEEDS:
        found = CorrectQueue(seed, has_excuses=has_excuses).run(120)
        assert check(found) == [], f"seed {seed}"
        assert found.arrivals


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_single_change_of_a_correct_history_is_found(mutation: str) -> None:
    kind, change = MUTATIONS[mutation]
    for seed in SEEDS:
        found = CorrectQueue(seed, has_excuses=False).run(120)
        change(found, random.Random(seed))
        assert kind in kinds(found), f"seed {seed}"


@pytest.mark.parametrize("numbers", [(0, 1, 3, 4), (0, 1, 2, 3), (1, 2, 3, 4)])
def test_what_is_lost_is_found_wherever_it_was(numbers: tuple[int, ...]) -> None:
    found = check(history(offered(5), arrived(*numbers), counted=tally(5, confirmed=4)))
    assert "1 of 5 acknowledged messages are nowhere" in next(each.detail for each in found if each.kind == "lost")
    assert "went nowhere" in {each.kind for each in found}


def test_repetitions_go_back_by_a_window_and_no_further() -> None:
    rows = arrived(0, 1, 2, 3, 2, 3, 4)
    assert check(history(offered(5), rows, most_repeated=2)) == []
    [anomaly] = check(history(offered(5), rows, most_repeated=1))
    assert "offset 2, came after offset 3: 2 back, 1 are allowed" in anomaly.detail


def test_a_wrong_order_is_found_also_under_offsets_that_rise() -> None:
    rows = [at(0, 0), at(2, 1), at(1, 2)]
    assert kinds(history(offered(3), rows)) == {"reordered"}


def test_what_a_publisher_sent_again_is_neither_doubled_nor_out_of_order() -> None:
    rows = [*arrived(0, 1, 2), at(1, 3), at(2, 4)]
    assert check(history(offered(3, writes=2), rows)) == []
    assert kinds(history(offered(3), rows)) == {"doubled"}


def test_dead_letters_are_those_that_the_sink_refuses_each_once_and_in_order() -> None:
    assert check(history(offered(4, poison=[1, 2]), arrived(0, 3), letters=arrived(1, 2))) == []
    assert kinds(history(offered(4), arrived(0, 1, 3), letters=arrived(2))) == {"dead letter without a refusal"}
    assert kinds(history(offered(4, poison=[2]), arrived(0, 1, 2, 3))) == {"refused row at the sink"}
    assert kinds(history(offered(4, poison=[2]), arrived(0, 1, 3), letters=arrived(2, 2))) == {"doubled"}
    assert kinds(history(offered(4, poison=[1, 2]), arrived(0, 3), letters=arrived(2, 1))) == {"reordered"}


def test_what_is_lost_with_a_memory_is_excused_only_if_it_was_there_when_the_store_died() -> None:
    memory = switched(0, 1, is_file=False)
    assert check(history(offered(3), arrived(0), memory, KILLED)) == []
    assert kinds(history(offered(3), arrived(0), memory)) == {"lost"}
    assert kinds(history(offered(3), arrived(0), memory, attrs.evolve(KILLED, began_s=2, ended_s=3))) == {"lost"}


def test_a_purge_excuses_what_waited_and_nothing_that_came_later() -> None:
    assert check(history(offered(3), arrived(2), PURGED)) == []
    assert kinds(history(offered(3), arrived(2), attrs.evolve(PURGED, began_s=0, ended_s=5))) == {"lost"}


def test_a_purge_gives_room_unless_a_writer_cannot_know_of_it_yet() -> None:
    offers = offered(9, refused=[8])
    emptied = Purge(began_s=16.6, ended_s=16.8)
    limits = {"most_records": 5, "writers_look_s": 1}
    assert kinds(history(offers, arrived(7), emptied, **limits)) == {"refused without a reason"}
    assert check(history(offers, arrived(7), emptied, attrs.evolve(KILLED, began_s=17, ended_s=17.1), **limits)) == []
    out = Disturbance(began_s=16, ended_s=17.5, what="a broker stands still")
    assert check(history(offers, arrived(7), emptied, out, **limits)) == []
    # What was put in behind it waits.
    early = attrs.evolve(emptied, began_s=12, ended_s=12.1)
    assert check(history(offers, arrived(*range(3, 8)), early, **limits)) == []


def test_a_restore_excuses_what_came_behind_the_backup_and_what_was_in_it_comes_again() -> None:
    lives = [again(3, 3), again(4, 4), again(10, 5), again(11, 6)]
    assert check(history(offered(12), [*arrived(*range(8)), *lives], SET_BACK)) == []
    assert check(history(offered(12), [*arrived(*range(4)), again(4, 4), *lives[2:]], SET_BACK)) == []
    assert kinds(history(offered(12), [*arrived(*range(4)), *lives[2:]], SET_BACK)) == {"lost"}
    assert kinds(history(offered(12), [*arrived(*range(8)), *lives, again(8, 7)], SET_BACK)) == {"reordered"}
    assert kinds(history(offered(12), [*arrived(*range(8)), again(4, 4), *lives, again(4, 7)], SET_BACK)) == {"doubled"}


def test_what_a_run_must_have_taken_is_not_excused_by_a_later_trim() -> None:
    assert check(history(offered(3), [], trimmed(3), ran(30, Outcome.REFUSED), **EXPORT)) == []
    assert kinds(history(offered(3), [], ran(15), trimmed(3), **EXPORT)) == {"lost"}


def test_the_first_run_of_an_export_begins_with_what_it_finds() -> None:
    """Nothing is lost to it, and neither is a shard that was made and deleted between two runs."""
    assert check(history(offered(3), arrived(2), trimmed(2), ran(30), ran(40), **EXPORT)) == []
    assert check(history(offered(3), [], ran(5), trimmed(NEVER), ran(30), **EXPORT)) == []
    assert kinds(history(offered(3), arrived(2), ran(5), trimmed(2), ran(30), **EXPORT)) == {"loss not told"}


def test_a_run_that_may_skip_a_loss_may_have_done_so_before_it_was_killed() -> None:
    killed = ran(30, Outcome.UNKNOWN, passes_over_loss=True)
    assert check(history(offered(9), arrived(0), ran(10.6), trimmed(NEVER), killed, ran(40), **EXPORT)) == []
    early = ran(10.8, Outcome.UNKNOWN, passes_over_loss=True)
    found = history(offered(9), arrived(0), ran(10.6), early, trimmed(NEVER), ran(40), **EXPORT)
    assert kinds(found) == {"loss not told"}


def test_a_failed_round_is_written_down_as_lines_of_json(tmp_path: Path) -> None:
    found = CorrectQueue(1, has_excuses=True).run(120)
    found.write(tmp_path / "history.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert {"Promises", "Offer", "Progress", "Tally", "arrival"} <= {line["kind"] for line in lines}
    assert sum(line["kind"] == "arrival" for line in lines) == len(found.arrivals)
