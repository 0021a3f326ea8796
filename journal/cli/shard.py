"""`journal shard ...`: create, list and show shards. Commands that change or delete them are in `shard_changes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from command_line.app import JsonOption
from command_line.output import write_json, write_table, write_text
from command_line.quantities import format_duration, parse_duration_s, parse_size_bytes
from journal.cli.connection import DEFAULT_SERVER, ServerOption, ask
from shards.quantities import counted, format_size

if TYPE_CHECKING:
    from shards.model import Retention, ShardInfo

EVERYTHING = "everything"


def create_command(
    name: str,
    *,
    mode: Literal["memory", "file"] = "file",
    max_age: str = "0s",
    max_bytes: str = "0",
    max_records: int = 0,
    segment_bytes: str = "0",
    index_keys: Annotated[bool, Parameter(negative="")] = False,
    index_tags: Annotated[bool, Parameter(negative="")] = False,
    exist_ok: Annotated[bool, Parameter(negative="")] = False,
    json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Create a shard.

    Args:
        name: Name of the shard, usually the topic.
        mode: Store its records in memory (fast, lost with the node) or in files.
        max_age: Drop segments older than this, such as 7d; 0s keeps them.
        max_bytes: Drop the oldest segments beyond this size, such as 10GiB; 0 keeps them.
        max_records: Drop the oldest segments beyond this number of records; 0 keeps them.
        segment_bytes: Close a segment at this size; 0 means the server's default.
        index_keys: Keep an index for reads by key.
        index_tags: Keep an index for reads by tag.
        exist_ok: Leave an existing shard of that name unchanged instead of failing.
    """
    from shards.model import Mode, Retention, ShardConfig

    config = ShardConfig(
        mode=Mode(mode),
        retention=Retention(parse_duration_s(max_age), parse_size_bytes(max_bytes), max_records),
        segment_bytes=parse_size_bytes(segment_bytes),
        index_keys=index_keys,
        index_tags=index_tags,
    )
    info = ask(server, lambda client: client.create_shard(name, config, exist_ok=exist_ok))
    _tell(info, f"{info.name}: {info.config.mode} mode", as_json=json)


def list_command(filter: str = "#", /, *, json: JsonOption = False, server: ServerOption = DEFAULT_SERVER) -> None:  # noqa: A002
    """List shards, sorted by name.

    Args:
        filter: Topic filter that the names match, with + and #.
    """
    shards = ask(server, lambda client: client.list_shards(filter))
    if json:
        import attrs

        for info in shards:
            # A list has no segments; an empty list of segments would be wrong.
            write_json(attrs.asdict(info, recurse=False, filter=lambda field, _: field.name != "segments"))
        return
    write_table(
        ("shard", "mode", "records", "start", "next", "size"),
        (
            (
                info.name,
                info.config.mode.value,
                f"{info.record_count:,}",
                str(info.start_offset),
                str(info.next_offset),
                format_size(info.size_bytes),
            )
            for info in shards
        ),
        numeric=("records", "start", "next", "size"),
    )


def show_command(name: str, /, *, json: JsonOption = False, server: ServerOption = DEFAULT_SERVER) -> None:
    """Show one shard with its segments.

    Args:
        name: Name of the shard.
    """
    info = ask(server, lambda client: client.describe_shard(name))
    if json:
        write_json(info)
        return
    indexes = ", ".join(
        word for word, kept_index in (("key", info.config.index_keys), ("tag", info.config.index_tags)) if kept_index
    )
    write_table(
        ("shard", info.name),
        (
            ("number", str(info.shard_id)),
            ("mode", info.config.mode.value),
            ("created", _moment(info.created_us)),
            ("records", f"{info.record_count:,}"),
            ("offsets", f"{info.start_offset} up to, not including, {info.next_offset}"),
            ("last lsn", str(info.last_lsn)),
            ("size", format_size(info.size_bytes)),
            ("keeps at most", retention_for_people(info.config.retention)),
            ("indexes", indexes or "none"),
            *(
                (("restored", f"from a backup: another history from offset {info.restored_offset} on"),)
                if info.restored_offset is not None
                else ()
            ),
        ),
    )
    write_table(
        ("segment", "start", "next", "size", "created", "closed"),
        (
            (
                segment.kind.value,
                str(segment.base_offset),
                str(segment.next_offset),
                format_size(segment.size_bytes),
                _moment(segment.created_us),
                "yes" if segment.closed else "no",
            )
            for segment in info.segments
        ),
        numeric=("start", "next", "size"),
    )


def retention_for_people(retention: Retention) -> str:
    """The bounds that are set."""
    bounds = (
        (format_duration(retention.max_age_s), retention.max_age_s),
        (format_size(retention.max_bytes), retention.max_bytes),
        (counted(retention.max_records, "record"), retention.max_records),
    )
    return ", ".join(bound for bound, is_set in bounds if is_set) or EVERYTHING


def _tell(info: ShardInfo, text: str, *, as_json: bool) -> None:
    if as_json:
        write_json(info)
    else:
        write_text(text)


def _moment(time_us: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(time_us / 1e6, UTC).astimezone().isoformat(sep=" ", timespec="seconds")
