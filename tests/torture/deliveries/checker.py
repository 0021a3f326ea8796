"""What a history of deliveries says of the promises: pure, a history in, anomalies out.

The promises: what was acknowledged arrives, or is a dead letter if the destination refuses it by itself, unless an
operator threw it away, it expired, was in the memory of a store that died, or came after the backup that was restored;
it arrives as it was sent, once or as often as the destination's documents allow, in the order of its source, and no
later than they say; each record of a queue ends in one count.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from tests.torture.anomaly import Anomaly
from tests.torture.deliveries.history import (
    NEVER,
    Command,
    Disturbance,
    History,
    Interval,
    Message,
    ModeChange,
    Offer,
    Outcome,
    Purge,
    PutBack,
    Restore,
    Run,
    StoreDeath,
    Trim,
)

_SHOWN: Final = 3
_Event = TypeVar("_Event", bound=Interval)


def check(history: History) -> list[Anomaly]:
    """All anomalies of a history.

    Kinds: lost, loss not told, went nowhere, doubled, refused row at the sink, dead letter without a refusal,
    reordered, phantom, changed, held up, refused without a reason, wrong count, ended by itself.
    """
    return list(_Check(history).anomalies())


class _Check:
    def __init__(self, history: History) -> None:
        self._history = history
        self._promises = history.promises
        self._purges = self._events(Purge)
        self._put_back = self._events(PutBack)
        self._deaths = self._events(StoreDeath)
        self._restores = self._events(Restore)
        self._runs = self._events(Run)
        self._disturbances = self._events(Disturbance)
        self._trims: dict[str, list[Trim]] = defaultdict(list)
        for trim in self._events(Trim):
            self._trims[trim.source].append(trim)
        self._in_memory = list(self._memory_intervals())
        self._letters = {each.message for each in history.letters}
        self._arrived = {each.message for each in history.arrivals}

    def _events(self, kind: type[_Event]) -> list[_Event]:
        found = [event for event in self._history.events if isinstance(event, kind)]
        return sorted(found, key=lambda event: event.began_s)

    def anomalies(self) -> Iterator[Anomaly]:
        """Kind after kind; of each the first few."""
        checks: tuple[Callable[[], Iterator[Anomaly]], ...] = (
            self._strangers,
            self._lost,
            self._untold,
            self._nowhere,
            self._repeated,
            self._written_too_often,
            self._reordered,
            self._dead_letters,
            self._held_up,
            self._refused,
            self._counts,
            self._commands,
            self._endings,
        )
        for each in checks:
            yield from itertools.islice(each(), _SHOWN)

    # What arrived

    def _strangers(self) -> Iterator[Anomaly]:
        for arrival in (*self._history.arrivals, *self._history.letters):
            offer = self._history.offers.get(arrival.message)
            if offer is None or not offer.writes:
                yield Anomaly("phantom", arrival.message.source, f"{arrival.message} was never sent")
            elif offer.content and arrival.content and offer.content != arrival.content:
                told = f"{arrival.message} was sent as {offer.content!r} and arrived as {arrival.content!r}"
                yield Anomaly("changed", arrival.message.source, told)

    def _repeated(self) -> Iterator[Anomaly]:
        """The destination goes on where it was, or goes back by no more than it may and on from there."""
        if not self._promises.numbers_are_offsets:
            return
        end = 0
        for arrival in self._history.arrivals:
            if (back := end - arrival.offset) > self._promises.most_repeated:
                told = f"{arrival.message}, offset {arrival.offset}, came after offset {end - 1}: {back} back"
                yield Anomaly("doubled", "destination", f"{told}, {self._promises.most_repeated} are allowed")
            end = max(end, arrival.offset + 1)

    def _written_too_often(self) -> Iterator[Anomaly]:
        """A message has as many offsets as its source has written it, and one more each time it was put back."""
        offsets: dict[Message, set[int]] = defaultdict(set)
        times: Counter[Message] = Counter()
        for arrival in self._history.arrivals:
            offsets[arrival.message].add(arrival.offset)
            times[arrival.message] += 1
        for message, found in offsets.items():
            offer = self._history.offers.get(message)
            if offer is None:
                continue
            is_once = not self._promises.numbers_are_offsets and not self._promises.most_repeated
            count = times[message] if is_once else len(found)
            # What a backup has waits again when that is restored.
            lives = 1 + sum(_may_have(each, offer) for each in self._restores)
            if count > (allowed := lives * (offer.writes + self._times_put_back(offer))):
                told = f"{message} is there {count} times, it was written {allowed} times"
                yield Anomaly("doubled", message.source, f"{told}; offsets {sorted(found)[:_SHOWN]}")

    def _times_put_back(self, offer: Offer) -> int:
        if not offer.is_poison:
            return 0
        return sum(event.ended_s > offer.began_s and event.count > 0 for event in self._put_back)

    def _reordered(self) -> Iterator[Anomaly]:
        if not self._promises.has_order:
            return
        seen: set[Message] = set()
        newest: dict[str, int] = {}
        for arrival in self._history.arrivals:
            message = arrival.message
            if message in seen:
                continue  # a repetition may come late; what comes for the first time may not
            seen.add(message)
            offer = self._history.offers.get(message)
            if offer is not None and self._times_put_back(offer):
                continue
            if offer is not None and any(_may_have(each, offer) for each in self._restores):
                continue  # what was purged after the backup is there again
            if message.number < newest.get(message.source, -1):
                yield Anomaly("reordered", message.source, f"{message.number} came after {newest[message.source]}")
            newest[message.source] = max(newest.get(message.source, -1), message.number)

    def _dead_letters(self) -> Iterator[Anomaly]:
        offsets = [letter.offset for letter in self._history.letters]
        if len(offsets) != len(set(offsets)):
            yield Anomaly("doubled", "dead letters", f"there twice: {_twice(offsets)}")
        elif offsets != sorted(offsets):
            yield Anomaly("reordered", "dead letters", "they are not in the order of the queue")
        for message in sorted(self._letters):
            if (offer := self._history.offers.get(message)) is not None and not offer.is_poison:
                yield Anomaly("dead letter without a refusal", message.source, f"the sink refuses no {message}")
        since = {letter.offset: letter.at_s for letter in self._history.letters}
        for arrival in self._history.arrivals:
            offer = self._history.offers.get(arrival.message)
            if offer is not None and offer.is_poison and not self._times_put_back(offer):
                yield Anomaly("refused row at the sink", arrival.message.source, f"{arrival.message}")
            elif arrival.at_s > since.get(arrival.offset, NEVER):
                told = f"{arrival.message}, offset {arrival.offset}, came though it was a dead letter by then"
                yield Anomaly("doubled", arrival.message.source, told)

    # What did not

    def _memory_intervals(self) -> Iterator[tuple[float, float]]:
        """When acknowledged records may have been in memory alone."""
        since = -NEVER if self._promises.is_in_memory else None
        for change in self._events(ModeChange):
            if not change.is_file:
                since = change.began_s if since is None else since
            elif since is not None and change.ended_s < NEVER:
                yield since, change.ended_s + self._promises.writers_look_s
                since = None
        if since is not None:
            yield since, NEVER

    def _was_in_memory(self, offer: Offer) -> bool:
        return any(first < offer.ended_s and offer.began_s < last for first, last in self._in_memory)

    def _may_be_missing(self, offer: Offer) -> bool:
        """Whether something happened after which it need not arrive."""
        message = offer.message
        return (
            offer.expires_s < NEVER
            or any(purge.ended_s > offer.began_s for purge in self._purges)
            or any(each.backup_began_s < offer.ended_s and offer.began_s < each.ended_s for each in self._restores)
            or (offer.is_poison and bool(self._put_back))
            or (self._was_in_memory(offer) and any(death.ended_s > offer.began_s for death in self._deaths))
            or any(
                _removes(trim, offer) and not self._was_exported(offer, trim) for trim in self._trims[message.source]
            )
        )

    def _was_exported(self, offer: Offer, trim: Trim) -> bool:
        """Whether a run between the two must have taken it."""
        return any(
            run.outcome is Outcome.OK and run.began_s > offer.ended_s and run.ended_s < trim.began_s
            for run in self._runs
        )

    def _missing(self) -> Iterator[Offer]:
        for offer in self._history.offers.values():
            if offer.outcome is Outcome.OK and offer.message not in self._arrived | self._letters:
                yield offer

    def _lost(self) -> Iterator[Anomaly]:
        missing = [offer for offer in self._missing() if not self._may_be_missing(offer)]
        tally = self._history.tally
        dropped = tally.counts["dropped_oldest"] + tally.counts["expired"] if tally else 0
        if len(missing) <= dropped:
            return
        acknowledged = sum(offer.outcome is Outcome.OK for offer in self._history.offers.values())
        first = min(missing, key=lambda offer: offer.message)
        told = f"{len(missing)} of {acknowledged} acknowledged messages are nowhere, the first is {first.message}"
        yield Anomaly("lost", first.message.source, f"{told}, acknowledged at {first.ended_s:.3f} s")

    def _untold(self) -> Iterator[Anomaly]:
        """A run that is to end with an error when records are gone may not end well behind them."""
        runs = [run for run in self._runs if run.outcome is Outcome.OK]
        for offer in self._missing():
            for trim in self._trims[offer.message.source]:
                if not _removes(trim, offer) or offer.ended_s > trim.began_s or not self._knew(trim):
                    continue
                run = next((run for run in runs if run.began_s > trim.ended_s), None)
                if run is not None and not self._may_have_passed_over(trim, run):
                    told = f"{offer.message} was removed before it was exported, and the run at {run.began_s:.3f} s"
                    yield Anomaly("loss not told", offer.message.source, f"{told} ended as if nothing were missing")
                break

    def _may_have_passed_over(self, trim: Trim, run: Run) -> bool:
        """Whether a run with that option, up to this one, may have skipped what a trim removed, and then failed."""
        return any(
            each.passes_over_loss and each.ended_s > trim.began_s and each.began_s <= run.began_s for each in self._runs
        )

    def _knew(self, trim: Trim) -> bool:
        """Whether a run before it knew that there was something to lose.

        The first run begins with what it finds. A shard that was made and deleted between two runs is not known.
        """
        since_s = -NEVER
        if trim.before == NEVER:
            offers = (each for each in self._history.offers.values() if each.message.source == trim.source)
            since_s = min((each.ended_s for each in offers if each.outcome is Outcome.OK), default=NEVER)
        return any(
            run.outcome is Outcome.OK and run.began_s > since_s and run.ended_s < trim.began_s for run in self._runs
        )

    def _nowhere(self) -> Iterator[Anomaly]:
        """Each record of a queue that lay in files is at the destination or a dead letter, acknowledged or not."""
        tally = self._history.tally
        excused = self._purges or self._put_back or self._in_memory or self._restores
        if tally is None or not self._promises.numbers_are_offsets or excused:
            return
        found = {each.offset for each in (*self._history.arrivals, *self._history.letters)}
        missing = set(range(tally.next_offset)) - found
        if len(missing) > tally.counts["dropped_oldest"] + tally.counts["expired"]:
            told = f"{len(missing)} of the queue's {tally.next_offset} records, the first is {min(missing)}"
            yield Anomaly("went nowhere", "queue", told)

    # When, and what was said

    def _held_up(self) -> Iterator[Anomaly]:
        bound_s = self._promises.held_up_s
        if bound_s == NEVER or not self._history.progress:
            return
        progress = sorted(self._history.progress, key=lambda each: each.at_s)
        ends = list(itertools.accumulate((each.offset for each in progress), max))
        first_offsets: dict[Message, int] = {}
        for arrival in (*self._history.arrivals, *self._history.letters):
            known = first_offsets.get(arrival.message, arrival.offset)
            first_offsets[arrival.message] = min(arrival.offset, known)
        for message, offset in first_offsets.items():
            offer = self._history.offers.get(message)
            if offer is None or offer.outcome is not Outcome.OK:
                continue
            place = bisect.bisect_right(ends, offset)
            done_s = progress[place].at_s if place < len(progress) else NEVER
            waited_s = done_s - self._undisturbed_since(offer.ended_s, done_s)
            if waited_s > bound_s:
                told = f"{message} had been under way for {waited_s:.1f} s with nothing out, {bound_s:g} s are allowed"
                yield Anomaly("held up", message.source, told)

    def _undisturbed_since(self, since_s: float, until_s: float) -> float:
        """From when on nothing was out, if messages under way since then are there at last."""
        ends = [each.ended_s for each in self._disturbances if each.began_s < until_s and each.ended_s > since_s]
        return min(max([since_s, *ends]), until_s)

    def _refused(self) -> Iterator[Anomaly]:
        """While there is room no producer is refused for lack of room."""
        most = self._promises.most_records
        if most is None:
            return
        offers = self._history.offers.values()
        for refused in offers:
            if refused.outcome is not Outcome.REFUSED:
                continue
            if any(each.began_s < refused.ended_s for each in self._restores):
                continue  # what waited when the backup was made waits again
            done_offset = max(
                (each.offset for each in self._history.progress if each.at_s < refused.began_s), default=0
            )
            done = {each.message for each in self._history.arrivals if each.offset < done_offset}
            emptied_s = self._emptied_s(refused)
            waiting = sum(
                each.began_s < refused.ended_s
                and each.outcome is not Outcome.REFUSED
                and each.message not in done
                and (each.ended_s > emptied_s or each.is_poison)
                for each in offers
            )
            if waiting < most:
                told = f"{refused.message} was refused while at most {waiting} waited, and {most} may"
                yield Anomaly("refused without a reason", refused.message.source, told)

    def _emptied_s(self, refused: Offer) -> float:
        """Up to when all that had been put in was thrown away, as every writer knew when an offer was refused.

        A writer whose store was killed since then may not have looked: that purge is left out.
        """
        known = [
            purge.began_s
            for purge in self._purges
            if self._undisturbed_since(purge.ended_s, refused.began_s) + self._promises.writers_look_s
            <= refused.began_s
            and not any(purge.ended_s <= death.ended_s and death.began_s <= refused.began_s for death in self._deaths)
        ]
        return max(known, default=-NEVER)

    def _counts(self) -> Iterator[Anomaly]:
        tally = self._history.tally
        if tally is None:
            return
        counts = tally.counts
        total = counts.total()
        told = f"{dict(counts)}, {total} in all"
        offers = [offer for offer in self._history.offers.values() if offer.outcome is not Outcome.REFUSED]
        most = sum(offer.writes for offer in offers) + sum(event.count for event in self._put_back)
        if total > most:
            yield Anomaly("wrong count", "queue", f"{told}, but no more than {most} records were ever put in")
        if not self._in_memory and total != tally.done_offset:
            yield Anomaly("wrong count", "queue", f"{told}, but {tally.done_offset} records have left it")
        at_the_sink = {arrival.offset for arrival in self._history.arrivals}
        if counts["confirmed"] > len(at_the_sink):
            yield Anomaly("wrong count", "queue", f"{told}, but the sink has {len(at_the_sink)}")
        if not (self._purges or self._deaths or counts["expired"] or counts["dropped_oldest"]) and counts[
            "confirmed"
        ] != len(at_the_sink):
            yield Anomaly("wrong count", "queue", f"{told}, and the sink has {len(at_the_sink)}")
        for name, events in (("purged", self._purges), ("lost", self._deaths)):
            if counts[name] and not events:
                yield Anomaly("wrong count", "queue", f"{told}, but nothing was {name}")
        if counts["dead_lettered"] < tally.kept_letters:
            yield Anomaly("wrong count", "queue", f"{told}, but {tally.kept_letters} dead letters are kept")

    def _commands(self) -> Iterator[Anomaly]:
        for command in self._events(Command):
            took_s = command.ended_s - self._undisturbed_since(command.began_s, command.ended_s)
            if command.outcome is Outcome.REFUSED:
                yield Anomaly("refused without a reason", command.what, command.detail)
            elif took_s > command.within_s:
                yield Anomaly("held up", command.what, f"for {took_s:.1f} s, {command.within_s:g} s are allowed")

    def _endings(self) -> Iterator[Anomaly]:
        for ending in self._history.endings:
            yield Anomaly("ended by itself", ending.process, f"with status {ending.status}")


def _may_have(restore: Restore, offer: Offer) -> bool:
    """Whether a message that was handed over before a restore may be in the backup."""
    return offer.began_s < restore.backup_ended_s and offer.began_s < restore.began_s


def _removes(trim: Trim, offer: Offer) -> bool:
    return offer.message.number < trim.before and offer.began_s < trim.ended_s


def _twice(offsets: Sequence[int]) -> list[int]:
    return [offset for offset, count in Counter(offsets).items() if count > 1][:_SHOWN]
