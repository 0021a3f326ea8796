"""Differences between two rule sets as text: a line for each setting or table. Pure.

Settings that a kind of sink excludes from its ``repr`` (passwords, addresses that may contain one) are never shown.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import attrs
import msgspec

from broker_adapter.bridge.config import BridgeTable
from broker_adapter.mqtt.rules.rule_set import RuleSet, plain_table
from broker_adapter.sinks.kinds import find_kind
from journal.settings.values import ConfigurationError, kind_of

HIDDEN: Final = "(not shown)"
"""Placeholder for what may be a secret."""

_DEFAULT: Final = "its default"
_MISSING: Final = object()


def differences(first: RuleSet, second: RuleSet, first_name: str, second_name: str) -> list[str]:
    """Describe the differences between two rule sets; an empty list if they are equal.

    Args:
        first_name: What to call the first, as in "the store".
        second_name: What to call the second.
    """
    found: list[str] = []
    if first.broker != second.broker:
        one, other = (str(rules.broker.offline).lower() for rules in (first, second))
        found.append(f"[broker] offline is {one} in {first_name}, {other} in {second_name}")
    found.extend(_of_lists("storage", first.storage, second.storage, first_name, second_name))
    found.extend(_of_lists("mapping", first.mapping, second.mapping, first_name, second_name))
    found.extend(_of_bridges(first.bridge, second.bridge, first_name, second_name))
    return found


def shown_tables(rules: RuleSet) -> dict[str, Any]:
    """`RuleSet.tables` without secrets, for output and logs."""
    tables = rules.tables
    if "bridge" in tables:
        tables["bridge"] = [{**table, "sink": shown_sink(table["sink"])} for table in tables["bridge"]]
    return tables


def shown_sink(sink: Mapping[str, object]) -> dict[str, object]:
    """The settings of a sink without secrets."""
    secret = _secrets_of(sink)
    return {name: HIDDEN if name in secret else value for name, value in sink.items()}


def shown_table(row: attrs.AttrsInstance) -> str:
    """A table in one line, in the form of an inline table of TOML."""
    return _in_line({name: _shown(row, name, value) for name, value in plain_table(row).items()})


def _of_lists(
    name: str,
    first: Sequence[attrs.AttrsInstance],
    second: Sequence[attrs.AttrsInstance],
    first_name: str,
    second_name: str,
) -> Iterator[str]:
    """Tables whose order matters: those without an equal table at the same place on the other side."""
    ours, others = [shown_table(row) for row in first], [shown_table(row) for row in second]
    for operation, first_at, first_end, second_at, second_end in difflib.SequenceMatcher(
        None, ours, others, autojunk=False
    ).get_opcodes():
        if operation == "equal":
            continue
        for index in range(first_at, first_end):
            yield f"[[{name}]] number {index + 1} of {first_name} is not in {second_name}: {ours[index]}"
        for index in range(second_at, second_end):
            yield f"[[{name}]] number {index + 1} of {second_name} is not in {first_name}: {others[index]}"


def _of_bridges(
    first: Iterable[BridgeTable], second: Iterable[BridgeTable], first_name: str, second_name: str
) -> Iterator[str]:
    ours, others = ({table.name: table for table in tables} for tables in (first, second))
    for name in sorted({*ours, *others}):
        one, other = ours.get(name), others.get(name)
        if one is None or other is None:
            has, lacks = (first_name, second_name) if other is None else (second_name, first_name)
            yield f"[[bridge]] {name} is in {has}, not in {lacks}"
            continue
        values, counterparts = plain_table(one), plain_table(other)
        for key in sorted({*values, *counterparts} - {"sink"}):
            if values.get(key) != counterparts.get(key):
                shown = (_shown(one, key, table[key]) if key in table else _DEFAULT for table in (values, counterparts))
                yield f"[[bridge]] {name}: {key} is {next(shown)} in {first_name}, {next(shown)} in {second_name}"
        yield from _of_sinks(name, one.sink, other.sink, first_name, second_name)


def _of_sinks(
    name: str, first: Mapping[str, object], second: Mapping[str, object], first_name: str, second_name: str
) -> Iterator[str]:
    secret = _secrets_of(first) | _secrets_of(second)
    for key in sorted({*first, *second}):
        one, other = first.get(key, _MISSING), second.get(key, _MISSING)
        if one == other:
            continue
        if key in secret:
            yield f"[[bridge]] {name}: sink.{key} differs between {first_name} and {second_name} {HIDDEN}"
            continue
        shown = ("not given" if value is _MISSING else _value(value) for value in (one, other))
        yield f"[[bridge]] {name}: sink.{key} is {next(shown)} in {first_name}, {next(shown)} in {second_name}"


def _secrets_of(sink: Mapping[str, object]) -> frozenset[str]:
    """Names of a sink's settings that may be secret."""
    return frozenset(sink) - _public_settings(str(sink["type"])) - {"type"}


@cache
def _public_settings(kind: str) -> frozenset[str]:
    """Names of the settings of a kind of sink that may be shown; none for a kind that is not installed here."""
    try:
        settings = find_kind(kind).settings
    except ConfigurationError:
        return frozenset()
    return frozenset(attribute.name for attribute in attrs.fields(settings) if attribute.repr)


def _shown(row: attrs.AttrsInstance, name: str, value: object) -> str:
    if name == "sink" and isinstance(value, Mapping):
        return _value(shown_sink(value))
    kind = kind_of(attrs.fields_dict(attrs.resolve_types(type(row)))[name].type)
    if isinstance(value, int) and not isinstance(value, bool) and kind is not None:
        return _value(kind.show(value))
    return _value(value)


def _value(value: object) -> str:
    """A value in TOML syntax; for these types JSON is the same."""
    if isinstance(value, Mapping):
        return _in_line({name: _value(inner) for name, inner in value.items()})
    return msgspec.json.encode(value).decode()


def _in_line(values: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{name} = {value}" for name, value in values.items()) + " }" if values else "{}"
