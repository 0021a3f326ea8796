"""The result of a run with several servers: what was promised and what came, and how long things took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from demo.clients.base_crowd import REPLAY
from demo.cluster.clients import QOS, RETAINED, ClusterCrowd
from demo.evidence.agreement import RetainedResult, check_retained, disagreements
from demo.evidence.check import Seen, TopicEvidence, TopicResult, check_topic
from demo.evidence.read_back import ReadBack
from demo.results.figures import Percentiles, acknowledging, delivering, kind_of, published_by, size_bytes

KILL_GOAL_S: Final = 5.0
KILL_MEDIAN_GOAL_S: Final = 2.0
CUT_GOAL_S: Final = 8.0

KILLED, CUT = "killed", "cut"


@attrs.frozen(slots=True, kw_only=True)
class Takeover:
    """A takeover, as the clients saw it.

    Attributes:
        cause: `KILLED` or `CUT`.
        former_owner: The server that owned the store.
        owner: The server that took it over.
        pause_s: From the last acknowledgement by the one to the first by the other, at the publisher that waited
            longer.
    """

    cause: str
    former_owner: str
    owner: str
    pause_s: float


@attrs.define(slots=True)
class Observations:
    """Observations during a run.

    Attributes:
        takeovers: In order.
        emptied: The server whose data directory was deleted.
        rejoin_s: From its start until it had all that was in the log then.
        rejoin_entries: So many entries the log had then.
        mended_s: From the end of the cut until that server followed the new owner.
        cut_s: How long it was cut from the network.
    """

    takeovers: list[Takeover] = attrs.Factory(list)
    emptied: str = ""
    rejoin_s: float = 0.0
    rejoin_entries: int = 0
    cut_s: float = 0.0
    mended_s: float = 0.0
    away_s: float = 0.0
    catching_up: tuple[int, float] = (0, 0.0)
    replayed: tuple[int, float] = (0, 0.0)
    publishing_s: float = 0.0
    run_s: float = 0.0


@attrs.frozen(slots=True, kw_only=True)
class ClusterOutcome:
    """The result of a run.

    Attributes:
        cut_by: How a server was cut from the network, in words.
        is_timed: Whether takeovers must meet their goals.
        topics: Result of each topic; stored is what the last owner has.
        records: Records that each server has, by server and topic, in the order in which they were read.
        differences: What servers have that others have not.
        retained: What new subscribers got at each broker.
        damages: Problems found by the offline check of the data directories.
        observed: Times, and what else was seen during the run.
        published_bytes: Payload bytes of what was published.
        acknowledging: Time to the acknowledgement, by QoS.
        delivering: Time from the publish to the delivery at a subscriber that was connected.
    """

    cut_by: str
    is_timed: bool
    topics: Sequence[TopicResult]
    records: Mapping[str, Mapping[str, int]]
    differences: Sequence[str]
    retained: Sequence[RetainedResult]
    damages: Sequence[str]
    observed: Observations
    published_bytes: int
    acknowledging: Mapping[str, Percentiles]
    delivering: Percentiles

    @property
    def broken(self) -> list[str]:
        """Promises that were not kept, a line each."""
        lines = [line for topic in self.topics for line in topic.broken]
        lines += self.differences
        lines += [line for each in self.retained for line in each.broken]
        lines += [f"offline check: {damage}" for damage in self.damages]
        lines += late(self.observed.takeovers) if self.is_timed else []
        if not self.topics:
            lines.append("nothing was published: there is no telemetry to read on this machine")
        return lines


def late(takeovers: Sequence[Takeover]) -> list[str]:
    """The takeovers that took longer than their goal, a line each.

    The goal for the median is not among these: a run has too few takeovers for one. The report shows it.
    """
    goals = {KILLED: KILL_GOAL_S, CUT: CUT_GOAL_S}
    return [
        f"{each.owner} took over {each.pause_s:.2f} s after {each.former_owner} was {each.cause}; "
        f"the goal is {goals[each.cause]:g} s"
        for each in takeovers
        if each.pause_s > goals[each.cause]
    ]


def median(seconds: Sequence[float]) -> float:
    """The median by the nearest rank; 0 without values."""
    ordered = sorted(seconds)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0.0


def cluster_outcome(
    crowd: ClusterCrowd,
    observed: Observations,
    by_server: Mapping[str, Mapping[str, ReadBack]],
    damages: Sequence[str],
    *,
    cut_by: str,
    is_timed: bool,
) -> ClusterOutcome:
    """Check everything, and compute the figures.

    Args:
        crowd: The clients.
        observed: What was seen during the run.
        by_server: What each server had at the end, by topic. The first one was the owner when all clients had left.
        damages: Problems found by the offline check.
        cut_by: How a server was cut from the network.
        is_timed: Whether takeovers must meet their goals.
    """
    published = published_by(crowd.publishers)
    stored = next(iter(by_server.values()))
    topics = [
        check_topic(
            TopicEvidence(
                name=topic,
                qos=QOS[kind_of(topic)],
                is_stored=True,
                may_lose=False,
                published=published[topic],
                found=stored[topic].found if topic in stored else [],
                gaps=stored[topic].gaps if topic in stored else [],
                seen={
                    name: Seen(received=ledger.topics[topic], from_store=name == REPLAY)
                    for name, ledger in crowd.ledgers.items()
                },
                is_sent_again=any(publisher.client.losses for publisher in crowd.publishers),
                killed_at_us=0,
            )
        )
        for topic in crowd.topics
    ]
    return ClusterOutcome(
        cut_by=cut_by,
        is_timed=is_timed,
        topics=topics,
        records={
            name: {topic: len(read.found) for topic, read in content.items()} for name, content in by_server.items()
        },
        differences=disagreements(
            {name: {topic: read.found for topic, read in content.items()} for name, content in by_server.items()}
        ),
        retained=[
            check_retained(
                topic,
                published[topic],
                {name: each.ledger.topics[topic] for name, each in crowd.newcomers.items()},
                is_retained=kind_of(topic) in RETAINED,
            )
            for topic in crowd.topics
        ],
        damages=damages,
        observed=observed,
        published_bytes=size_bytes(published),
        acknowledging=acknowledging(published, QOS),
        delivering=delivering(crowd.watcher.ledger),
    )
