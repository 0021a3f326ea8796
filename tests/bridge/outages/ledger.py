"""What publishers were promised and what the sink holds: whether a bridge kept its word. Pure.

The promises: whatever was acknowledged is in the sink, or among the dead letters if the sink refuses it by itself; what
was published to one topic is there in its order; a sink that keeps a position has nothing twice, and what others have
twice goes back by a window of batches at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import attrs


@attrs.frozen(order=True)
class Message:
    """One message: the topics are the publishers' own, and each numbers its messages from 0."""

    topic: str
    number: int


@attrs.frozen
class Found:
    """A message that arrived somewhere.

    Attributes:
        offset: Which it had in the queue. One that was published again, as nobody acknowledged it, is there twice.
    """

    message: Message
    offset: int


@attrs.define
class Ledger:
    """All that publishers know.

    Attributes:
        sent: How many messages were handed to a publisher, by topic; their numbers are those below.
        acknowledged: Those that a broker took.
        refused: Those that a broker said it had not taken.
        poison: Those that the sink refuses by themselves.
    """

    sent: Counter[str] = attrs.Factory(Counter)
    acknowledged: set[Message] = attrs.Factory(set)
    refused: set[Message] = attrs.Factory(set)
    poison: set[Message] = attrs.Factory(set)

    def send(self, topic: str, *, is_poison: bool = False) -> Message:
        """The next message of a topic."""
        message = Message(topic, self.sent[topic])
        self.sent[topic] += 1
        if is_poison:
            self.poison.add(message)
        return message

    def settle(self, message: Message, *, is_taken: bool) -> None:
        """A broker answered."""
        (self.acknowledged if is_taken else self.refused).add(message)

    def problems(
        self,
        rows: Sequence[Found],
        letters: Sequence[Found],
        *,
        next_offset: int,
        most_repeated: int,
    ) -> list[str]:
        """The promises that were not kept, a line each.

        Args:
            rows: What the sink holds, in its order.
            letters: The dead letters, in theirs.
            next_offset: Of the queue: all below it has left it.
            most_repeated: How far the sink's rows may go back; 0 if none may be there twice.
        """
        found = list(_order_problems(rows, most_repeated))
        found += self._content_problems(rows, letters)
        missing = set(range(next_offset)).difference(each.offset for each in (*rows, *letters))
        if missing:
            found.append(
                f"{len(missing)} of the queue's {next_offset} records went nowhere, the first is {min(missing)}"
            )
        return found

    def _content_problems(self, rows: Sequence[Found], letters: Sequence[Found]) -> Iterable[str]:
        in_sink, set_aside = ({each.message for each in place} for place in (rows, letters))
        if lost := self.acknowledged - in_sink - set_aside:
            yield f"{len(lost)} of {len(self.acknowledged)} acknowledged messages are nowhere, the first is {min(lost)}"
        if strangers := {each for each in in_sink | set_aside if each.number >= self.sent[each.topic]}:
            yield f"nobody sent these {len(strangers)}: {min(strangers)}"
        if wrong := in_sink & self.poison:
            yield f"the sink has {len(wrong)} that it refuses: {min(wrong)}"
        if wrong := set_aside - self.poison:
            yield f"{len(wrong)} dead letters are no poison: {min(wrong)}"
        offsets = [each.offset for each in letters]
        if offsets != sorted(set(offsets)):
            yield "dead letters are there twice, or out of order"


def _order_problems(rows: Sequence[Found], most_repeated: int) -> Iterable[str]:
    seen: set[Message] = set()
    newest: dict[str, int] = {}
    end_offset = 0
    for row in rows:
        if (back := end_offset - row.offset) > most_repeated:
            yield f"offset {row.offset} came after {end_offset - 1}: {back} back, {most_repeated} are allowed"
        end_offset = max(end_offset, row.offset + 1)
        message = row.message
        # A repetition may come late; what comes for the first time may not.
        if message not in seen and message.number < newest.get(message.topic, -1):
            yield f"{message} came after number {newest[message.topic]}"
        seen.add(message)
        newest[message.topic] = max(newest.get(message.topic, -1), message.number)
