"""Exactly once, against a model server that refuses, repeats, forgets, and loses connections."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.client.producer_window import Action, Entry, ProducerWindow
from journal.protocol.errors import InternalError, UnknownHandleError
from shards.errors import (
    LimitExceededError,
    OverloadedError,
    SequenceGapError,
    ShardNotFoundError,
    StaleEpochError,
    StorageError,
    UnknownProducerError,
)
from shards.format.batch import encode_values, values
from shards.format.batch_header import MAX_SEQUENCE, BatchHeader
from shards.model import ProducerIdentity

IDENTITY = ProducerIdentity(7, 1)
REMEMBERED = 3


def entry_of(number: int, count: int = 1) -> Entry:
    return Entry(encode_values([b"%d" % number] * count, timestamp_us=1), count, token=number)


class ModelServer:
    """One shard and one producer, by the rules of docs/protocol.md; logs (number, sequence, count) of each batch."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int, int]] = []
        self.has_state = False
        self.expected = 0

    def append(self, batch: bytes, fault: StorageError | None, *, store_before_fault: bool) -> StorageError | None:
        header = BatchHeader.unpack(batch)
        behind = (self.expected - header.sequence) % MAX_SEQUENCE
        if self.has_state and 0 < behind < MAX_SEQUENCE // 2:
            return None
        if fault is not None and not store_before_fault:
            return fault
        if self.has_state and behind:
            return SequenceGapError("gap", self.expected)
        self.log.append((int(values(batch)[0]), header.sequence, header.record_count))
        self.has_state = True
        self.expected = (header.sequence + header.record_count) % MAX_SEQUENCE
        return fault

    def forget_from(self, length: int) -> None:
        """Lose the newest batches, and with them the state that they had made."""
        del self.log[length:]
        self.has_state = bool(self.log)
        if self.log:
            _, sequence, count = self.log[-1]
            self.expected = (sequence + count) % MAX_SEQUENCE


FAULTS: dict[str, tuple[StorageError | None, bool]] = {
    "none": (None, False),
    "overloaded": (OverloadedError("full"), False),
    "refused": (LimitExceededError("too long"), False),
    "handle": (UnknownHandleError("closed"), False),
    "broken, not stored": (InternalError("?"), False),
    "broken, but stored": (InternalError("?"), True),
}


class Simulation:
    """A window, a model server, and the bytes between them: requests in order, refusals may overtake acks."""

    def __init__(self, first_sequence: int) -> None:
        self.server = ModelServer()
        self.window = ProducerWindow(IDENTITY, first_sequence)
        self.requests: deque[tuple[Entry, int, bytes]] = deque()
        self.acks: deque[Entry] = deque()
        self.refusals: deque[tuple[Entry, int, StorageError]] = deque()
        self.correlation = 0
        self.added = 0
        self.acknowledged: set[int] = set()
        self.refused: set[int] = set()
        self.uncertain: set[int] = set()

    def add(self, count: int) -> None:
        self.window.add(entry_of(self.added, count))
        self.added += 1

    def send(self) -> bool:
        self.correlation += 1
        entry = self.window.take(self.correlation)
        if entry is None:
            return False
        self.requests.append((entry, self.correlation, entry.batch))
        return True

    def serve(self, fault: str = "none") -> bool:
        if not self.requests:
            return False
        entry, correlation, batch = self.requests.popleft()
        error, store = FAULTS[fault]
        refusal = self.server.append(batch, error, store_before_fault=store)
        if refusal is None:
            self.acks.append(entry)
        else:
            self.refusals.append((entry, correlation, refusal))
        return True

    def deliver_ack(self) -> bool:
        if not self.acks:
            return False
        entry = self.acks.popleft()
        if self.window.acknowledged(entry):
            self.acknowledged.add(entry.token)
        return True

    def deliver_refusal(self) -> bool:
        if not self.refusals:
            return False
        entry, correlation, error = self.refusals.popleft()
        decision = self.window.refused(entry, correlation, error)
        for failed in decision.failed:
            (self.uncertain if isinstance(error, InternalError) else self.refused).add(failed.token)
        return True

    def lose_connection(self, served: int) -> None:
        """The server still carries out some requests that were sent; their replies are lost."""
        for _ in range(served):
            self.serve()
        self.requests.clear()
        self.acks.clear()
        self.refusals.clear()
        self.window.connection_lost()

    def withdraw(self, served: int, remainder: int) -> None:
        """Lose the connection, and then give up every third append, whatever became of it."""
        self.lose_connection(served)
        withdrawn = self.window.withdraw(lambda entry: entry.token % 3 == remainder)
        self.uncertain |= {entry.token for entry in withdrawn}

    def heal(self) -> None:
        """No more faults: everything must come to its end."""
        for _ in range(50 + 50 * self.added):
            self.window.resume()
            moved = self.send() | self.serve() | self.deliver_ack() | self.deliver_refusal()
            if not moved and not len(self.window):
                return
        raise AssertionError(f"{len(self.window)} appends never came to an end")


steps = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 3)),
    st.tuples(st.just("add"), st.integers(1, 3)),
    st.just(("send",)),
    st.just(("send",)),
    st.tuples(st.just("serve"), st.sampled_from(["none", *FAULTS])),
    st.just(("serve", "none")),
    st.just(("ack",)),
    st.just(("refusal",)),
    st.just(("resume",)),
    st.tuples(st.just("lose"), st.integers(0, 3)),
    st.tuples(st.just("withdraw"), st.integers(0, 3), st.integers(0, 2)),
)
first_sequences = st.sampled_from([0, MAX_SEQUENCE - 2])


def perform(simulation: Simulation, step: tuple[object, ...]) -> None:
    match step:
        case ("add", int(count)):
            simulation.add(count)
        case ("send",):
            simulation.send()
        case ("serve", str(fault)):
            simulation.serve(fault)
        case ("ack",):
            simulation.deliver_ack()
        case ("refusal",):
            simulation.deliver_refusal()
        case ("resume",):
            simulation.window.resume()
        case ("lose", int(served)):
            simulation.lose_connection(served)
        case ("withdraw", int(served), int(remainder)):
            simulation.withdraw(served, remainder)
        case ("crash", int(served), int(kept)):
            simulation.lose_connection(served)
            simulation.server.forget_from(kept)


@settings(max_examples=400, deadline=None)
@given(first_sequences, st.lists(steps, max_size=60))
def test_every_acknowledged_append_is_stored_once_and_in_order(first: int, script: list[tuple[object, ...]]) -> None:
    simulation = Simulation(first)
    for step in script:
        perform(simulation, step)
    simulation.heal()
    stored = [number for number, _, _ in simulation.server.log]
    assert stored == sorted(set(stored))
    assert simulation.acknowledged <= set(stored)
    assert not simulation.refused & set(stored)
    assert set(stored) <= simulation.acknowledged | simulation.uncertain
    everything = simulation.acknowledged | simulation.refused | simulation.uncertain
    assert everything == set(range(simulation.added))


crashes = st.tuples(st.just("crash"), st.integers(0, 3), st.integers(0, 6))


@settings(max_examples=400, deadline=None)
@given(first_sequences, st.lists(st.one_of(steps, steps, steps, crashes), max_size=60))
def test_a_server_that_forgets_is_caught_up_with(first: int, script: list[tuple[object, ...]]) -> None:
    """Memory mode: a crash takes acknowledged batches; what is unacknowledged goes on, once and in order."""
    simulation = Simulation(first)
    may_be_lost: set[int] = set()
    for step in script:
        perform(simulation, step)
        if step[0] == "crash":
            may_be_lost = set(simulation.acknowledged)
    simulation.heal()
    stored = [number for number, _, _ in simulation.server.log]
    assert stored == sorted(set(stored))
    assert simulation.acknowledged - may_be_lost <= set(stored)
    assert not simulation.refused & set(stored)


def sent(window: ProducerWindow, *correlations: int) -> list[int]:
    taken = [window.take(correlation) for correlation in correlations]
    return [entry.token for entry in taken if entry is not None]


def established(count: int) -> tuple[ProducerWindow, list[Entry]]:
    """A window whose first append was acknowledged, and ``count`` more in flight under correlations from 1."""
    window = ProducerWindow(IDENTITY)
    first = entry_of(-1)
    window.add(first)
    window.take(99)
    window.acknowledged(first)
    entries = [entry_of(number) for number in range(count)]
    for number, entry in enumerate(entries):
        window.add(entry)
        assert window.take(number + 1) is entry
    return window, entries


def test_first_append_of_a_connection_goes_alone() -> None:
    window = ProducerWindow(IDENTITY)
    entries = [entry_of(number) for number in range(3)]
    for entry in entries:
        window.add(entry)
    assert sent(window, 1, 2) == [0]
    window.acknowledged(entries[0])
    assert sent(window, 3, 4) == [1, 2]
    window.connection_lost()
    assert sent(window, 5, 6) == [1]


def test_entry_is_stamped_with_identity_and_sequence() -> None:
    _, entries = established(2)
    header = BatchHeader.unpack(entries[1].batch)
    assert (header.producer_id, header.producer_epoch, header.sequence) == (7, 1, 2)


def test_nonretriable_refusal_fails_one_and_the_next_takes_its_sequence() -> None:
    window, entries = established(3)
    decision = window.refused(entries[1], 2, LimitExceededError("too long"))
    assert (decision.action, decision.failed) == (Action.FAIL, (entries[1],))
    assert window.refused(entries[2], 3, SequenceGapError("gap", 2)).action is Action.NONE
    window.acknowledged(entries[0])
    assert sent(window, 4) == [2]
    assert BatchHeader.unpack(entries[2].batch).sequence == 2


def test_overloaded_blocks_until_resumed_and_keeps_the_order() -> None:
    window, entries = established(3)
    assert window.refused(entries[0], 1, OverloadedError("full")).action is Action.BACK_OFF
    assert sent(window, 4) == []
    window.resume()
    assert sent(window, 5, 6) == [0]
    window.acknowledged(entries[0])
    assert sent(window, 7, 8) == [1, 2]


def test_late_acknowledgement_of_an_old_attempt_counts() -> None:
    window, entries = established(2)
    window.connection_lost()
    assert window.acknowledged(entries[0])
    assert not window.acknowledged(entries[0])
    assert sent(window, 5) == [1]


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_withdrawn_append_is_never_sent_again_and_the_next_one_is_not_lost(is_stored: bool) -> None:
    window, entries = established(3)
    window.connection_lost()
    assert window.withdraw(lambda entry: entry is entries[0]) == (entries[0],)
    assert sent(window, 5, 6) == [1]
    if not is_stored:
        assert BatchHeader.unpack(entries[1].batch).sequence == 2
        assert window.refused(entries[1], 5, SequenceGapError("gap", 1)).action is Action.NONE
        assert sent(window, 7) == [1]
        assert BatchHeader.unpack(entries[1].batch).sequence == 1
    assert window.acknowledged(entries[1])
    assert sent(window, 8) == [2]


def test_lost_memory_level_appends_are_renumbered_from_what_the_server_expects() -> None:
    window, entries = established(2)
    window.connection_lost()
    assert sent(window, 5) == [0]
    assert window.refused(entries[0], 5, SequenceGapError("gap", 0)).action is Action.NONE
    assert sent(window, 6) == [0]
    assert BatchHeader.unpack(entries[0].batch).sequence == 0
    assert window.next_sequence == 2


@pytest.mark.parametrize("expected", [None, 500])
def test_gap_that_cannot_be_closed_is_an_error(expected: int | None) -> None:
    window, entries = established(1)
    decision = window.refused(entries[0], 1, SequenceGapError("gap", expected))
    assert (decision.action, decision.failed) == (Action.FAIL, (entries[0],))


def test_fenced_producer_fails_everything() -> None:
    window, entries = established(2)
    decision = window.refused(entries[0], 1, StaleEpochError("epoch 1 < 2"))
    assert (decision.action, decision.failed) == (Action.FENCED, tuple(entries))
    assert len(window) == 0


def test_deleted_shard_fails_everything_in_it() -> None:
    window, entries = established(2)
    decision = window.refused(entries[0], 1, ShardNotFoundError("gone"))
    assert (decision.action, decision.failed) == (Action.FAIL, tuple(entries))
    assert window.next_sequence == 1


def test_unknown_producer_starts_anew_under_its_new_identity() -> None:
    window, entries = established(2)
    assert window.refused(entries[0], 1, UnknownProducerError("7")).action is Action.REGISTER
    assert sent(window, 3) == []
    window.rebind(ProducerIdentity(8, 1))
    assert sent(window, 4) == [0]
    header = BatchHeader.unpack(entries[0].batch)
    assert (header.producer_id, header.sequence) == (8, 0)
