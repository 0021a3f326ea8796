"""Batches of producers: who may send them, and what becomes of one that is not the next in its sequence.

What is stored of a producer in a shard is `shards.idempotence.producer_state`, what a resent batch is answered with
`shards.idempotence.resends`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from journal.engine.state.producer_use import ProducerUse
from shards.errors import SequenceGapError, SequenceLostError, StaleEpochError
from shards.format.batch import BatchHeader
from shards.idempotence.producer_state import ProducerState
from shards.idempotence.resends import Answer, answer_to
from shards.model import AckLevel
from shards.segments.shard import Shard

_MEMORY = int(AckLevel.MEMORY)


class InProcess:
    """What an `AckSink` says of who sends, for appends from inside the process."""

    # They never yield a producer to a newer connection.
    number = 0
    producers = ""


class Sender(Protocol):
    """Who appends; see `AckSink`."""

    @property
    def number(self) -> int: ...

    @property
    def producers(self) -> str: ...


class Taken(NamedTuple):
    """What is acknowledged of a batch, and whether only with the group that is being collected."""

    base_offset: int
    level: int
    waits: bool
    is_duplicate: bool = False


class ProducerSequences:
    """Checks what producers send to the shards of one engine.

    Args:
        newest_epoch: The epoch of a producer that is not fenced; raises `UnknownProducerError`.
        check_name: Refuses a sender whose names of producers begin otherwise.
        load: The producers of a shard as the views have them.
        use: Which connection uses which producer.
        durable_level: The level of what is in the journal.
    """

    def __init__(
        self,
        *,
        newest_epoch: Callable[[int], int],
        check_name: Callable[[int, str], None],
        load: Callable[[Shard], dict[int, ProducerState]],
        use: ProducerUse,
        durable_level: int,
    ) -> None:
        self._producer_epoch = newest_epoch
        self._check_producer = check_name
        self._load_producers = load
        self._use = use
        self._durable_level = durable_level

    def state(self, shard: Shard, header: BatchHeader, sender: Sender | type[InProcess]) -> ProducerState:
        """The sequence state of a producer that is not fenced; a newer epoch begins a new sequence.

        Raises:
            UnknownProducerError: There is no such producer, or the sender may not send for it.
            StaleEpochError: Another has opened the producer since.
            SequenceLostError: The shard has forgotten what this producer sent.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        if sender.producers and self._use.owners.get(producer_id) != sender.number:
            # Before any other answer: a client without the right gets no information and cannot fence another client.
            self._check_producer(producer_id, sender.producers)
        newest = self._producer_epoch(producer_id)
        # First, so that a fenced client does not change the state of the present one.
        if epoch != newest:
            raise StaleEpochError(
                f"producer {producer_id} has epoch {newest}, the batch was sent under epoch {epoch}: another client "
                f"has opened the producer since; open it again to use it here"
            )
        self._use.take(producer_id, epoch, sender.number)
        producers = shard.producers
        if producers is None:
            producers = shard.producers = self._load_producers(shard)
        producer = producers.get(producer_id)
        if producer is None or producer.epoch != epoch:
            if producer is None and header.sequence and shard.has_forgotten_producers:
                raise SequenceLostError(
                    f"producer {producer_id} sent sequence {header.sequence} to shard {shard.name!r}, which has no "
                    f"state of it, as it sent nothing for long: the batch may be stored already. Read the shard, and "
                    f"append the records that it lacks as new ones, from sequence 0",
                    0,
                )
            producer = producers[producer_id] = ProducerState(epoch, header.sequence)
        return producer

    def answer(self, shard: Shard, producer: ProducerState, header: BatchHeader) -> Taken | None:
        """What is acknowledged of a batch that is not the expected one; None if it is to be stored nevertheless.

        Raises:
            SequenceGapError: One before it is missing.
            SequenceLostError: It is not known any more whether it is stored.
        """
        producer_id, sequence = header.producer_id, header.sequence
        answer, offset = answer_to(producer, sequence, header.record_count, shard.places_of)
        if answer is Answer.STORE:
            if producer.is_repeat(sequence):
                producer.store_again_from(sequence)
            return None
        if answer is Answer.GAP:
            raise SequenceGapError(
                f"producer {producer_id} sent sequence {sequence} to shard {shard.name!r}, which expects "
                f"{producer.next_sequence}: a batch before it was refused or is missing; send again from that sequence "
                f"on",
                producer.next_sequence,
            )
        if answer is Answer.LOST:
            raise SequenceLostError(
                f"producer {producer_id} sent sequence {sequence} to shard {shard.name!r}, which has later ones up to "
                f"{producer.next_sequence} but not this one: it was in memory when the server stopped, or is too old "
                f"to be known. Append its records as new ones if they are still needed",
                producer.next_sequence,
            )
        level = self._durable_level if answer is Answer.DURABLE_DUPLICATE else _MEMORY
        # Its first copy may still be on its way to the disk: then this acknowledgement waits for it too, also when it
        # is not known any more which append that was.
        is_published = offset < shard.published_offset if offset >= 0 else not shard.pending_groups
        return Taken(offset, level, waits=not is_published, is_duplicate=True)
