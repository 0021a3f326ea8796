"""The checks that only several servers and retained messages need. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from demo.evidence.check import Found
from demo.evidence.ledger import Published, Received

Content = Mapping[str, Sequence[Found]]
"""What a server has, by topic."""


def disagreements(by_server: Mapping[str, Content]) -> list[str]:
    """The differences of what servers have, a line for each server and topic. The first server is compared with."""
    (first, expected), *others = by_server.items()
    lines = []
    for name, content in others:
        for topic in sorted({*expected, *content}):
            here, there = list(expected.get(topic, ())), list(content.get(topic, ()))
            if here != there:
                at = next(
                    (place for place, (one, other) in enumerate(zip(here, there, strict=False)) if one != other),
                    min(len(here), len(there)),
                )
                lines.append(
                    f"{topic}: {name} has {len(there):,} records and {first} has {len(here):,}; "
                    f"they differ from record {at:,} on"
                )
    return lines


@attrs.frozen(slots=True, kw_only=True)
class RetainedResult:
    """What brokers gave a new subscriber of one topic.

    Attributes:
        topic: The topic.
        number: The message that they must give, the last one; -1 for none, where nothing is retained.
        given: The messages that each broker gave.
        wrong: The brokers that gave anything else.
    """

    topic: str
    number: int
    given: Mapping[str, Sequence[int]]
    wrong: Sequence[str]

    @property
    def broken(self) -> list[str]:
        """The promises that were not kept, a line each."""
        due = f"message {self.number:,}, the last one" if self.number >= 0 else "none"
        return [
            f"{self.topic}: {broker} gave {list(self.given[broker]) or 'nothing'} as the retained message; it is {due}"
            for broker in self.wrong
        ]


def check_retained(
    topic: str, published: Sequence[Published], received: Mapping[str, Sequence[Received]], *, is_retained: bool
) -> RetainedResult:
    """Compare what brokers gave a new subscriber with the last message of a topic.

    Args:
        topic: The topic.
        published: Its messages, all of them acknowledged.
        received: By broker.
        is_retained: Whether its messages are retained at all.
    """
    number = len(published) - 1 if is_retained else -1
    due = [(number, published[-1].digest)] if number >= 0 else []
    given = {broker: [(each.number, each.digest) for each in messages] for broker, messages in received.items()}
    return RetainedResult(
        topic=topic,
        number=number,
        given={broker: [each for each, _ in messages] for broker, messages in given.items()},
        wrong=[broker for broker, messages in given.items() if messages != due],
    )
