"""What a history says about the records of one shard: pure, operations in, anomalies out.

Of a shard that was ever in memory mode, records that are not acknowledged as durable may be lost when the server's
process ends; a reader is then shown a gap in their place, and their producer may store them again at other offsets.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence

import attrs

from tests.torture.anomaly import Anomaly
from tests.torture.history import NEVER, Append, Death, Observed, Outcome, Poll, Read, Trim

_SHOWN = 3
"""Anomalies of one kind that one shard lists; one defect breaks thousands of records."""


@attrs.define
class _Seen:
    """All that is known of one offset."""

    contents: dict[Observed, float] = attrs.Factory(dict)
    """What readers got there, and when that was first known."""
    known_ns: float = NEVER
    """The time from which a client knew that there is a record."""
    durable_ns: float = NEVER
    """From when on it was acknowledged as durable."""
    born_ns: float = NEVER
    """When the first append that is known to be here was asked for."""


class ShardCheck:
    """The check of one shard.

    Args:
        shard: Its name.
        always_file: It was never in memory mode.
        appends: All appends to it.
        looks: All that readers got of it.
        trims: All trims of it.
        deaths: When the server's process ended.
    """

    def __init__(
        self,
        shard: str,
        *,
        always_file: bool,
        appends: Sequence[Append],
        looks: Sequence[Read | Poll],
        trims: Sequence[Trim],
        deaths: Sequence[Death],
    ) -> None:
        self._shard = shard
        self._always_file = always_file
        self._appends = appends
        self._reads = [look for look in looks if isinstance(look, Read)]
        self._looks = [look for look in looks if look.outcome is Outcome.OK]
        self._trims = trims
        self._deaths = deaths
        self._seen: dict[int, _Seen] = defaultdict(_Seen)
        self._owners = {value: (append, place) for append in appends for place, value in enumerate(append.values)}
        self._last = [read for read in self._reads if read.last]
        self._counts: dict[str, int] = defaultdict(int)
        self._trimmed_to = max((trim.before for trim in trims), default=0)

    def anomalies(self) -> Iterator[Anomaly]:
        """Everything that is wrong."""
        for check in (
            self._ranges,
            self._contents,
            self._repeated_values,
            self._order_of_streams,
            self._order_in_time,
            self._lsns,
            self._gaps,
            self._ends,
            self._starts,
            self._unplaced,
        ):
            for anomaly in check():
                self._counts[anomaly.kind] += 1
                if self._counts[anomaly.kind] <= _SHOWN:
                    yield anomaly

    def _anomaly(self, kind: str, *detail: object) -> Anomaly:
        return Anomaly(kind, self._shard, ", ".join(map(str, detail)))

    def _trim_asked(self, before_ns: float) -> int:
        """The highest offset that a trim which may have taken effect by then names."""
        return max(
            (trim.before for trim in self._trims if trim.began_ns < before_ns and trim.outcome is not Outcome.FAILED),
            default=0,
        )

    def _died_between(self, first_ns: float, last_ns: float) -> bool:
        return any(death.ended_ns > first_ns and death.began_ns < last_ns for death in self._deaths)

    # One after the other; the first two also collect what is known of each offset.

    def _ranges(self) -> Iterator[Anomaly]:
        """Within one answer records and gaps follow one another without a hole."""
        for look in self._looks:
            first = look.offset if isinstance(look, Read) else look.first_offset
            items = sorted([(one.offset, one.offset + 1) for one in look.records] + list(look.gaps))
            at = first
            for begin, end in items:
                # A gap may begin below the offset that was asked for.
                if begin != at and not (begin < at < end and at == first):
                    kind = "hole in a read" if begin > at else "repetition in a read"
                    yield self._anomaly(kind, f"offset {begin} where {at} should be", look.who, f"from {first}")
                at = end
            if at < look.next_offset:
                yield self._anomaly("hole in a read", f"it ends at {at} and goes on at {look.next_offset}", look.who)
            if list(look.records) != sorted(look.records):
                yield self._anomaly("reordering", f"records of one read are not in order, from {first}", look.who)

    def _contents(self) -> Iterator[Anomaly]:
        """One content for each offset, and only what was appended and not refused."""
        for append in self._appends:
            if append.outcome is Outcome.OK and append.offset >= 0:
                for offset in range(append.offset, append.offset + len(append.values)):
                    seen = self._seen[offset]
                    seen.known_ns = min(seen.known_ns, append.ended_ns)
                    seen.born_ns = min(seen.born_ns, append.began_ns)
                    if append.level == "durable":
                        seen.durable_ns = min(seen.durable_ns, append.ended_ns)
        for look in self._looks:
            for record in look.records:
                seen = self._seen[record.offset]
                seen.known_ns = min(seen.known_ns, look.ended_ns)
                seen.contents.setdefault(record, look.ended_ns)
        for offset, seen in self._seen.items():
            if len(seen.contents) > 1:
                yield self._anomaly("inconsistent offset", offset, *seen.contents)
            for record in seen.contents:
                owner = self._owners.get(record.value)
                if owner is None:
                    yield self._anomaly("phantom record", record, "this value was never appended")
                    continue
                seen.born_ns = min(seen.born_ns, owner[0].began_ns)
                if owner[0].outcome is Outcome.FAILED:
                    yield self._anomaly("aborted read", record, f"its append by {owner[0].who} failed")
        for append in self._appends:
            if append.outcome is Outcome.OK and append.offset >= 0:
                for offset, value in enumerate(append.values, append.offset):
                    for record in self._seen[offset].contents:
                        if record.value != value:
                            yield self._anomaly("inconsistent offset", f"{offset} was acknowledged as {value}", record)
        if self._always_file:
            yield from self._shared_offsets()

    def _shared_offsets(self) -> Iterator[Anomaly]:
        taken: dict[int, str] = {}
        for append in self._appends:
            if append.outcome is Outcome.OK and append.offset >= 0:
                for offset, value in enumerate(append.values, append.offset):
                    if taken.setdefault(offset, value) != value:
                        yield self._anomaly(
                            "inconsistent offset", f"{offset} was acknowledged as {value}", taken[offset]
                        )

    def _repeated_values(self) -> Iterator[Anomaly]:
        """A value is at one offset, and the values of one append have adjoining offsets."""
        places: dict[str, dict[int, float]] = defaultdict(dict)
        for read in self._reads if not self._always_file else self._looks:
            for record in read.records:
                # When it was asked for: what is shown then was there then.
                before = places[record.value].get(record.offset, -NEVER)
                places[record.value][record.offset] = max(before, read.began_ns)
        for append in self._appends:
            if append.outcome is Outcome.OK and append.offset >= 0:
                for offset, value in enumerate(append.values, append.offset):
                    places[value].setdefault(offset, -NEVER)
        for value, offsets in places.items():
            if len(offsets) < 2:
                continue
            first, *others = sorted(offsets)
            if self._always_file or self._both_there(first, others, offsets):
                yield self._anomaly("duplicate", value, f"at offsets {sorted(offsets)}")
        for append in self._appends:
            yield from self._torn(append, places)

    def _both_there(self, first: int, others: list[int], seen_at: dict[int, float]) -> bool:
        """Of a shard in memory mode: the earlier copy was there when the later one was known, so it was not lost."""
        if self._seen[first].durable_ns < NEVER:
            return True
        return any(seen_at[first] > self._seen[other].known_ns for other in others)

    def _torn(self, append: Append, places: dict[str, dict[int, float]]) -> Iterator[Anomaly]:
        if len(append.values) < 2 or not self._always_file:
            return
        bases = {offset - place for place, value in enumerate(append.values) for offset in places.get(value, ())}
        if len(bases) > 1:
            yield self._anomaly("torn batch", append.values, f"begins at {sorted(bases)}")
        elif bases and self._last:
            base = bases.pop()
            there = self._there_at_the_end()
            start = max(read.start_offset for read in self._last)
            missing = [
                value
                for place, value in enumerate(append.values)
                if base + place >= start and there.get(value) != base + place
            ]
            if missing and len(missing) < len(append.values):
                yield self._anomaly("torn batch", append.values, f"without {missing}")

    def _there_at_the_end(self) -> dict[str, int]:
        return {record.value: record.offset for read in self._last for record in read.records}

    def _positions(self) -> dict[int, int]:
        """Where an append lies, by its place in the list: acknowledged, or else found in the end."""
        there = self._there_at_the_end()
        if self._always_file:
            there.update({record.value: record.offset for look in self._looks for record in look.records})
        found = {}
        for index, append in enumerate(self._appends):
            if append.outcome is Outcome.OK and append.offset >= 0:
                found[index] = append.offset
            elif append.values and append.values[0] in there:
                found[index] = there[append.values[0]]
        return found

    def _order_of_streams(self) -> Iterator[Anomaly]:
        """What one producer appended is in the order in which it appended."""
        newest: dict[str, tuple[int, int]] = {}
        positions = self._positions()
        in_order = sorted(positions, key=lambda index: (self._appends[index].stream, self._appends[index].number))
        for index in in_order:
            append = self._appends[index]
            if append.number < 0:
                continue
            before = newest.get(append.stream)
            if before is not None and before[1] >= positions[index]:
                told = f"append {append.number} lies at {positions[index]}, append {before[0]} before it at {before[1]}"
                yield self._anomaly("reordering", append.stream, told)
            newest[append.stream] = (append.number, positions[index])

    def _order_in_time(self) -> Iterator[Anomaly]:
        """What was appended after another append had been acknowledged is behind it."""
        placed = [append for append in self._appends if append.outcome is Outcome.OK and append.offset >= 0]
        by_end = sorted(placed, key=lambda append: append.ended_ns)
        done, highest = 0, -1
        for append in sorted(placed, key=lambda append: append.began_ns):
            while done < len(by_end) and by_end[done].ended_ns < append.began_ns:
                highest = max(highest, by_end[done].offset)
                done += 1
            if append.offset <= highest:
                told = f"{append.values[0]} lies at {append.offset}, though {highest} was acknowledged before"
                yield self._anomaly("reordering", append.who, told)

    def _lsns(self) -> Iterator[Anomaly]:
        """lsns and append times rise with the offsets, and one lsn is one batch of one producer."""
        newest: Observed | None = None
        batches: dict[int, str] = {}
        for offset in sorted(self._seen):
            for record in self._seen[offset].contents:
                if newest is not None and record.lsn < newest.lsn:
                    yield self._anomaly("falling lsn", newest, record)
                if newest is not None and record.time_us < newest.time_us:
                    yield self._anomaly("falling append time", newest, record)
                newest = record
                owner = self._owners.get(record.value)
                producer = "" if owner is None else owner[0].stream or owner[0].transaction
                # Appends of one producer may share a batch.
                if producer and batches.setdefault(record.lsn, producer) != producer:
                    yield self._anomaly("one lsn for two appends", record, batches[record.lsn])

    def _gaps(self) -> Iterator[Anomaly]:
        """A gap stands only for what a trim or the loss of memory may have taken, and for ever."""
        offsets = sorted(self._seen)
        first_shown: dict[tuple[int, int], float] = {}
        for look in self._looks:
            trimmed = self._trim_asked(look.ended_ns)
            for first, end in look.gaps:
                gap = (max(first, trimmed), end)
                if gap[0] >= gap[1]:
                    continue
                first_shown.setdefault(gap, look.ended_ns)
                if self._always_file:
                    yield self._anomaly("gap in file mode", gap, look.who)
                for offset in offsets[bisect_left(offsets, gap[0]) : bisect_left(offsets, gap[1])]:
                    yield from self._hidden(offset, look)
        yield from self._returned(first_shown, offsets)

    def _hidden(self, offset: int, look: Read | Poll) -> Iterator[Anomaly]:
        seen = self._seen[offset]
        if seen.durable_ns < NEVER:
            yield self._anomaly("lost write", f"offset {offset} was acknowledged as durable", f"a gap for {look.who}")
        elif seen.known_ns < look.began_ns and not self._died_between(seen.born_ns, look.ended_ns):
            yield self._anomaly("disappeared read", f"offset {offset} was there", f"a gap for {look.who}")

    def _returned(self, first_shown: dict[tuple[int, int], float], offsets: list[int]) -> Iterator[Anomaly]:
        for (first, end), shown_ns in first_shown.items():
            for offset in offsets[bisect_left(offsets, first) : bisect_left(offsets, end)]:
                for record in self._seen[offset].contents:
                    owner = self._owners.get(record.value)
                    if owner is not None and owner[0].began_ns > shown_ns:
                        yield self._anomaly("offset used again", record, f"it was a gap from {first} to {end} before")
        for read in self._reads:
            for (first, end), shown_ns in first_shown.items():
                if read.began_ns > shown_ns:
                    for record in read.records[bisect_left(read.records, (first,)) : bisect_left(read.records, (end,))]:
                        yield self._anomaly("record in place of a gap", record, f"a gap from {first} to {end} before")

    def _ends(self) -> Iterator[Anomaly]:
        """A reader that got the end of the shard has been shown all that was known before."""
        highest_known: list[tuple[float, int]] = []
        highest = -1
        for known_ns, offset in sorted((seen.known_ns, offset) for offset, seen in self._seen.items()):
            highest = max(highest, offset)
            highest_known.append((known_ns, highest))
        ends = [read for read in self._reads if read.outcome is not Outcome.UNKNOWN and self._tells_end(read)]
        for read in ends:
            at = bisect_right(highest_known, (read.began_ns, -1)) - 1
            if at >= 0 and highest_known[at][1] >= read.next_offset:
                known = highest_known[at][1]
                durable = self._seen[known].durable_ns < read.began_ns
                kind = "lost write" if read.last and durable else "non-monotonic read"
                yield self._anomaly(
                    kind, f"{read.who} is told that {read.next_offset} is the end", f"{known} was known"
                )

    def _tells_end(self, read: Read) -> bool:
        if read.outcome is Outcome.FAILED:
            return read.next_offset >= 0
        return read.next_offset == read.offset

    def _starts(self) -> Iterator[Anomaly]:
        """A shard begins where a trim said, no further and never before."""
        done = sorted((trim.ended_ns, trim.before) for trim in self._trims if trim.outcome is Outcome.OK)
        for read in self._reads:
            asked = self._trim_asked(read.ended_ns)
            if read.start_offset > asked:
                told = f"{read.who} is told that it begins at {read.start_offset}"
                yield self._anomaly("disappeared read", told, f"trims go up to {asked}")
            trimmed = max((before for ended_ns, before in done if ended_ns < read.began_ns), default=0)
            if read.start_offset < trimmed:
                told = f"{read.who} is told that it begins at {read.start_offset}"
                yield self._anomaly("trim undone", told, f"it was trimmed to {trimmed}")

    def _unplaced(self) -> Iterator[Anomaly]:
        """What was acknowledged without an offset is found in the end, like everything else that is durable."""
        if not self._last:
            return
        there = self._there_at_the_end()
        start = max(read.start_offset for read in self._last)
        shown = {offset for look in self._looks for gap in look.gaps for offset in range(*gap)}
        for append in self._appends:
            if append.outcome is not Outcome.OK or append.ended_ns > self._last[0].began_ns:
                continue
            lasting = append.level == "durable" or not self._died_between(append.began_ns, self._last[-1].ended_ns)
            for place, value in enumerate(append.values):
                if value in there or not lasting:
                    continue
                offset = append.offset + place if append.offset >= 0 else -1
                if (offset < 0 and start == 0) or (offset >= start and offset not in shown):
                    told = f"acknowledged as {append.level} at offset {append.offset}"
                    yield self._anomaly("lost write", value, told, f"by {append.who}")
