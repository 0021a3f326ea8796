"""Histories of a queue that keeps every promise, from a seed, and single changes of them that break one.

The queue is a list in this process: records are put in, taken by a sink that repeats within its window, purged, put
back, lost with a store's memory; the store is set back to a backup. So a history has all that the checker has to
excuse, and no anomaly.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import attrs

from tests.torture.deliveries.history import (
    LIFE_OFFSETS,
    Arrival,
    Command,
    Disturbance,
    Ending,
    History,
    Message,
    ModeChange,
    Offer,
    Outcome,
    Progress,
    Promises,
    Purge,
    PutBack,
    Restore,
    StoreDeath,
    Tally,
)

MOST_RECORDS = 40
HELD_UP_S = 5.0
WINDOW = 8


@attrs.define
class _Waiting:
    offset: int
    message: Message
    is_in_memory: bool


@attrs.frozen
class _Backup:
    at_s: float
    waiting: list[_Waiting]
    next_offset: int
    counts: Counter[str]
    letters: list[Arrival]


class CorrectQueue:
    """A queue, its writers, its sink and its operator.

    Args:
        seed: Decides everything.
        has_excuses: Whether records are purged, put back, lost and kept in memory as well.
    """

    def __init__(self, seed: int, *, has_excuses: bool) -> None:
        self._rng = random.Random(seed)
        self._repeats = self._rng.random() < 0.5
        self._has_excuses = has_excuses
        self.history = History(
            Promises(most_repeated=WINDOW if self._repeats else 0, held_up_s=HELD_UP_S, most_records=MOST_RECORDS)
        )
        self._now_s = 0.0
        self._sent: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []
        self._next_offset = 0
        self._is_in_memory = False
        self._counts: Counter[str] = Counter()
        self._letters: list[Arrival] = []
        self._backup: _Backup | None = None
        self._life = 0

    def run(self, steps: int) -> History:
        """Do something at random so many times, then drain the queue."""
        acts: list[Callable[[], None]] = [self._put, self._put, self._put, self._drain, self._drain, self._look]
        if self._has_excuses:
            acts += [self._purge, self._put_back, self._die, self._switch, self._be_out, self._back_up, self._restore]
        for _ in range(steps):
            self._now_s += self._rng.random()
            self._rng.choice(acts)()
        while self._waiting:
            self._drain()
        self._look()
        self.history.letters = self._letters
        self.history.tally = Tally(self._next_offset, self._next_offset, self._counts, len(self._letters))
        return self.history

    def _put(self) -> None:
        source = self._rng.choice("ab")
        message = Message(source, self._sent[source])
        self._sent[source] += 1
        offer = Offer(message, self._now_s, is_poison=self._rng.random() < 0.05, content=f"content of {message}")
        self.history.offers[message] = offer
        if len(self._waiting) >= MOST_RECORDS:
            offer.outcome, offer.ended_s = Outcome.REFUSED, self._now_s
            return
        self._store(message)
        if self._rng.random() < 0.1:
            offer.writes += 1
            self._store(message)
        if self._rng.random() < 0.9:
            offer.outcome, offer.ended_s = Outcome.OK, self._now_s + 0.1

    def _store(self, message: Message) -> None:
        self._waiting.append(_Waiting(self._next_offset, message, self._is_in_memory))
        self._next_offset += 1

    def _drain(self) -> None:
        """A batch is taken, and perhaps a second time; rows that are refused become dead letters."""
        batch, self._waiting = self._waiting[:WINDOW], self._waiting[WINDOW:]
        rows: list[Arrival] = []
        for each in batch:
            offer = self.history.offers[each.message]
            offset = each.offset + self._life * LIFE_OFFSETS
            arrival = Arrival(each.message, offset, self._now_s, offer.content)
            if offer.is_poison:
                self._letters.append(arrival)
                self._counts["dead_lettered"] += 1
            else:
                rows.append(arrival)
                self._counts["confirmed"] += 1
        if rows and self._repeats and self._rng.random() < 0.2:
            self.history.arrivals += rows[: self._rng.randrange(len(rows)) + 1]
        self.history.arrivals += rows
        self._look()

    def _look(self) -> None:
        done_offset = self._waiting[0].offset if self._waiting else self._next_offset
        self.history.progress.append(Progress(self._now_s, done_offset + self._life * LIFE_OFFSETS))
        # Draining comes by chance here: what waits for it is excused as for a sink that is out.
        self.history.events.append(
            Disturbance(began_s=self._now_s - 100, ended_s=self._now_s, what="nothing was drained")
        )

    def _purge(self) -> None:
        self.history.events.append(Purge(began_s=self._now_s, ended_s=self._now_s + 0.1))
        self._counts["purged"] += len(self._waiting)
        self._waiting = []
        self._now_s += 0.2

    def _put_back(self) -> None:
        letters, self._letters = self._letters, []
        self.history.events.append(PutBack(began_s=self._now_s, ended_s=self._now_s + 0.1, count=len(letters)))
        for letter in letters:
            self._store(letter.message)

    def _die(self) -> None:
        self.history.events.append(StoreDeath(began_s=self._now_s, ended_s=self._now_s + 0.1))
        kept = [each for each in self._waiting if not each.is_in_memory]
        self._counts["lost"] += len(self._waiting) - len(kept)
        self._waiting = kept
        self._now_s += 0.2

    def _switch(self) -> None:
        self._is_in_memory = not self._is_in_memory
        change = ModeChange(began_s=self._now_s, ended_s=self._now_s + 0.1, is_file=not self._is_in_memory)
        self.history.events.append(change)
        self._now_s += 0.2

    def _back_up(self) -> None:
        """The store is stopped for it, so what is in memory is lost."""
        self._now_s += 0.2
        self._die()
        self._backup = _Backup(
            self._now_s, list(self._waiting), self._next_offset, Counter(self._counts), list(self._letters)
        )
        self._now_s += 0.2

    def _restore(self) -> None:
        if self._backup is None:
            return
        self._now_s += 0.2
        found = self._backup
        restore = Restore(
            began_s=self._now_s, ended_s=self._now_s + 0.1, backup_began_s=found.at_s, backup_ended_s=found.at_s
        )
        self.history.events.append(restore)
        self._life += 1
        self._waiting, self._next_offset = list(found.waiting), found.next_offset
        self._counts, self._letters = Counter(found.counts), list(found.letters)
        self._now_s += 0.2

    def _be_out(self) -> None:
        self.history.events.append(Disturbance(began_s=self._now_s, ended_s=self._now_s + 20, what="the sink is out"))
        self._now_s += 20


def lose(history: History, rng: random.Random) -> None:
    """An acknowledged message did not arrive."""
    rows = [each for each in history.arrivals if history.offers[each.message].outcome is Outcome.OK]
    message = rng.choice(rows).message
    history.arrivals = [each for each in history.arrivals if each.message != message]


def repeat(history: History, rng: random.Random) -> None:
    """A row from further back than a window is there again."""
    history.arrivals.append(attrs.evolve(history.arrivals[rng.randrange(len(history.arrivals) - 2 * WINDOW)]))


def store_twice(history: History, rng: random.Random) -> None:
    """A message that was written once has two offsets."""
    once = [each for each in history.arrivals if history.offers[each.message].writes == 1]
    history.arrivals.append(attrs.evolve(rng.choice(once), offset=history.arrivals[-1].offset + 1))


def reorder(history: History, rng: random.Random) -> None:
    """Two neighbours of a source change places, under the offsets that they found there."""
    del rng
    once = [each for each in history.arrivals if history.offers[each.message].writes == 1]
    first = once[0]
    later = next(each for each in once if each.message.source == first.message.source and each != first)
    places = (history.arrivals.index(first), history.arrivals.index(later))
    history.arrivals = [each for each in history.arrivals if each not in (first, later)]
    history.arrivals.insert(places[0], attrs.evolve(later, offset=first.offset))
    history.arrivals.insert(places[1], attrs.evolve(first, offset=later.offset))


def invent(history: History, rng: random.Random) -> None:
    """A message arrives that was not sent."""
    place = rng.randrange(len(history.arrivals))
    history.arrivals[place] = attrs.evolve(history.arrivals[place], message=Message("nobody", 0))


def change_content(history: History, rng: random.Random) -> None:
    """A message is not what it was."""
    place = rng.randrange(len(history.arrivals))
    history.arrivals[place] = attrs.evolve(history.arrivals[place], content="0.30000000000000004")


def hold_up(history: History, rng: random.Random) -> None:
    """The queue did not move for longer than allowed, though nothing was out."""
    del rng
    history.events = [each for each in history.events if not isinstance(each, Disturbance)]
    history.progress = [attrs.evolve(each, at_s=each.at_s + 10 * HELD_UP_S) for each in history.progress]


def count_wrongly(history: History, rng: random.Random) -> None:
    """A record is counted twice."""
    assert history.tally is not None
    history.tally.counts["confirmed"] += 1 + rng.randrange(3)


def end_by_itself(history: History, rng: random.Random) -> None:
    """A broker ended that was not killed."""
    history.endings.append(Ending("broker-0", rng.choice((1, -11))))


def refuse(history: History, rng: random.Random) -> None:
    """A message is refused though the queue is empty."""
    del rng
    last_s = history.progress[-1].at_s + 1
    message = Message("a", 1 << 20)
    history.offers[message] = Offer(message, last_s, last_s + 0.1, Outcome.REFUSED)


def be_late_with_a_command(history: History, rng: random.Random) -> None:
    """A queue whose driver was killed cannot be deleted."""
    last_s = history.progress[-1].at_s + 1
    command = Command(began_s=last_s, ended_s=last_s + 30 + rng.random(), what="delete", outcome=Outcome.OK, within_s=9)
    history.events.append(command)


MUTATIONS: dict[str, tuple[str, Callable[[History, random.Random], None]]] = {
    "lose": ("lost", lose),
    "repeat": ("doubled", repeat),
    "store twice": ("doubled", store_twice),
    "reorder": ("reordered", reorder),
    "invent": ("phantom", invent),
    "change content": ("changed", change_content),
    "hold up": ("held up", hold_up),
    "count wrongly": ("wrong count", count_wrongly),
    "end by itself": ("ended by itself", end_by_itself),
    "refuse": ("refused without a reason", refuse),
    "be late with a command": ("held up", be_late_with_a_command),
}
"""By name: which anomaly shows it, and how it is made."""
