"""What an engine and its process that writes Parquet files say to each other.

Requests and answers are lines of JSON, several for one with very many segments: no step of the event loop goes through
all of them. The process imports nothing of the engine but this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import attrs
import msgspec

from shards.delta.actions import TableRequest, TableVersion
from shards.segments.conversion_plan import GatheredFiles, SharedPlan

_ITEMS_IN_A_LINE = 250


@attrs.frozen
class Request:
    """What the worker is to do; one of ``gather``, ``look_into`` and ``table`` is set.

    Attributes:
        gather: Write shared files.
        look_into: Path of a shared file: tell which shards have records in it.
        continues: The next line has more sources of ``gather``.
        table: Bring the Delta table to this state.
    """

    gather: SharedPlan | None = None
    look_into: str = ""
    continues: bool = False
    table: TableRequest | None = None

    def __str__(self) -> str:
        if self.table is not None:
            return f"the log of the Delta table in {self.table.root}"
        if self.look_into:
            return f"nothing, but looked into {self.look_into}"
        sources = self.gather.sources if self.gather is not None else ()
        if len(sources) == 1:
            (source,) = sources
            return f"offsets {source.base_offset} to {source.next_offset} of shard {source.name!r}"
        return f"{len(sources)} segments of several shards"


@attrs.frozen
class Answer:
    """The worker's answer to a request; one of the first five attributes is set.

    Attributes:
        gathered: The shared files are written.
        shard_ids: The shards in the shared file.
        table: The Delta table has the state.
        corruption: Path, position and description of the damage.
        failure: Any other error.
        continues: The next line has more parts of ``gathered``.
    """

    gathered: GatheredFiles | None = None
    shard_ids: list[int] | None = None
    table: TableVersion | None = None
    corruption: tuple[str, int, str] | None = None
    failure: str = ""
    continues: bool = False


def lines_of_request(request: Request) -> Iterator[bytes]:
    """Encode a request."""
    plan = request.gather
    for start, end, continues in _pieces(len(plan.sources) if plan is not None else 0):
        piece = None if plan is None else attrs.evolve(plan, sources=tuple(plan.sources[start:end]))
        yield msgspec.json.encode(attrs.evolve(request, gather=piece, continues=continues)) + b"\n"


def lines_of_answer(answer: Answer) -> Iterator[bytes]:
    """Encode an answer."""
    gathered = answer.gathered
    for start, end, continues in _pieces(len(gathered.parts) if gathered is not None else 0):
        piece = None if gathered is None else attrs.evolve(gathered, parts=gathered.parts[start:end])
        yield msgspec.json.encode(attrs.evolve(answer, gathered=piece, continues=continues)) + b"\n"


def joined_request(lines: Sequence[Request]) -> Request:
    """Join what several lines had of one request."""
    plans = [line.gather for line in lines if line.gather is not None]
    if len(lines) == 1 or not plans:
        return lines[-1]
    sources = list(chain.from_iterable(plan.sources for plan in plans))
    return attrs.evolve(lines[-1], gather=attrs.evolve(plans[-1], sources=sources))


def joined_answer(lines: Sequence[Answer]) -> Answer:
    """Join what several lines had of one answer."""
    found = [line.gathered for line in lines if line.gathered is not None]
    if len(lines) == 1 or not found:
        return lines[-1]
    parts = list(chain.from_iterable(each.parts for each in found))
    return attrs.evolve(lines[-1], gathered=attrs.evolve(found[-1], parts=parts))


def _pieces(count: int) -> Iterator[tuple[int, int, bool]]:
    """Ranges of so many items, at least one, and whether another follows."""
    for start in range(0, max(1, count), _ITEMS_IN_A_LINE):
        end = start + _ITEMS_IN_A_LINE
        yield start, end, end < count
