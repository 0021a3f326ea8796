"""From a TOML file and overrides to the classes that define the settings, and the messages about wrong ones.

The classes consist of

- sections: attrs classes of plain values, ``[section]`` in the file;
- lists of tables: ``tuple[Class, ...]``, ``[[name]]`` in the file, or ``[[section.name]]`` for one in a section.

The types of single values are in `journal.settings.values`.
"""

from __future__ import annotations

import difflib
import enum
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, NoReturn, TypeVar, get_args

import attrs
import cattrs
from attrs import AttrsInstance
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError, IterableValidationError

from journal.settings.values import ConfigurationError, allowed, kind_of

_T = TypeVar("_T", bound=AttrsInstance)

_MOST_HOMES: Final = 3
"""Sections that are named at most for a setting that belongs elsewhere."""


@attrs.frozen
class Relation:
    """A rule between two numbers: the first is at least ``factor`` times the other plus ``room``, and why."""

    name: str
    factor: int
    room: int
    other: str
    why: str


class Schema(Generic[_T]):
    """The settings of one program.

    Args:
        settings_class: Its attributes are the sections and lists of tables.
        relations: Rules between settings, by dotted name.
        check: Returns further problems of settings that are valid one by one, a text for each.
        renames: New names of sections, lists of tables and settings (``section.key``), by their old names.

    Attributes:
        sections: The single settings by section and name.
        tables: The settings of each list of tables, by the dotted name of the list.
    """

    def __init__(
        self,
        settings_class: type[_T],
        relations: Sequence[Relation] = (),
        check: Callable[[_T], Iterable[str]] = lambda _: (),
        renames: Mapping[str, str] = {},
    ) -> None:
        self._class = settings_class
        self._renames = renames
        self._relations = relations
        self._check = check
        self.sections: dict[str, dict[str, attrs.Attribute[Any]]] = {}
        self.tables: dict[str, dict[str, attrs.Attribute[Any]]] = {}
        for name, attribute in _attributes_of(settings_class).items():
            if self._take_table(name, attribute):
                continue
            assert attribute.type is not None
            self.sections[name] = {
                key: inner
                for key, inner in _attributes_of(attribute.type).items()
                if not self._take_table(f"{name}.{key}", inner)
            }

    def _take_table(self, name: str, attribute: attrs.Attribute[Any]) -> bool:
        row = next(iter(get_args(attribute.type)), None)
        if not (isinstance(row, type) and attrs.has(row)):
            return False
        self.tables[name] = _attributes_of(row)
        return True

    def load(self, path: str | os.PathLike[str] | None, overrides: Mapping[str, object] = {}) -> _T:
        """Read a settings file.

        Args:
            path: A TOML file; None for the defaults.
            overrides: Values that replace the file's, by dotted name: ``{"storage.segment_bytes": "1 GiB"}``.

        Raises:
            ConfigurationError: The file cannot be read, or a setting is unknown, of a wrong type or out of bounds. The
                message has one line for each such setting.
        """
        source = "the defaults" if path is None else os.fspath(path)
        return self.settle({} if path is None else _read(source), source, overrides)

    def settle(self, values: dict[str, object], source: str, overrides: Mapping[str, object] = {}) -> _T:
        """Create settings from values that were read already.

        Args:
            values: Values as decoded from TOML.
            source: Where they are from, for messages.
            overrides: See `load`.

        Raises:
            ConfigurationError: See `load`.
        """
        problems = _Problems(self, source, overrides)
        merged = self._merge(values, overrides, problems)
        try:
            settings = _converter.structure(merged, self._class)
        except ClassValidationError as error:
            problems.take(error, merged)
            problems.give_up(error)
        self._check_bounds(settings, merged, problems)
        self._check_relations(settings, problems)
        if not problems:
            for problem in self._check(settings):
                problems.add(problem)
        if problems:
            problems.give_up(None)
        return settings

    def _merge(self, values: dict[str, object], overrides: Mapping[str, object], problems: _Problems) -> dict[str, Any]:
        """Combine the file's values and the overrides, without values whose shape is wrong."""
        merged: dict[str, Any] = {}
        for name, value in values.items():
            if name in self.tables:
                if problems.expect_tables(name, f"{name} = {_shown(value)}", value):
                    merged[name] = value
            elif isinstance(value, dict):
                merged[name] = {
                    key: inner
                    for key, inner in value.items()
                    if (dotted := f"{name}.{key}") not in self.tables
                    or problems.expect_tables(dotted, f"[{name}] {key} = {_shown(inner)}", inner)
                }
            elif name in self.sections:
                problems.add(f"{name} = {_shown(value)} must be a section: [{name}]")
            else:
                problems.add(self.unknown_name(name, name))
        for name, value in overrides.items():
            section, dot, key = name.partition(".")
            if not dot:
                problems.add(f"{name} is not a dotted name; write it like log.level", source=f"override {name}")
            elif (table := name if name in self.tables else section) in self.tables:
                problems.add(f"[[{table}]] is a list of tables, which only a file can have", source=f"override {name}")
            else:
                merged.setdefault(section, {})[key] = value
        return merged

    @property
    def names(self) -> list[str]:
        """The allowed names at the top of a file."""
        return [*self.sections, *(name for name in self.tables if "." not in name)]

    def unknown_name(self, found: str, name: str) -> str:
        """The message about an unknown section, list of tables or setting.

        Args:
            found: As the message shows it.
            name: Its dotted name.
        """
        if name in self._renames:
            return f"{found} has a new name: {self._written(self._renames[name])}"
        section, _, key = name.rpartition(".")
        rows = {**self.sections, **self.tables}
        known = sorted(rows[section] if section else self.names)
        if close := difflib.get_close_matches(key, known, n=1):
            return f"{found} is unknown; did you mean {close[0]}?"
        homes = [self._heading(home) for home, attributes in rows.items() if key in attributes]
        if 0 < len(homes) <= _MOST_HOMES:
            return f"{found} is unknown here; it belongs to {' or '.join(homes)}"
        return f"{found} is unknown; known: {', '.join(known)}"

    def _heading(self, name: str) -> str:
        return f"[[{name}]]" if name in self.tables else f"[{name}]"

    def _written(self, name: str) -> str:
        """A section, list of tables or setting as a file has it."""
        if name in self.sections or name in self.tables:
            return self._heading(name)
        section, _, key = name.rpartition(".")
        return f"{key} in {self._heading(section)}"

    def _check_bounds(self, settings: _T, merged: dict[str, Any], problems: _Problems) -> None:
        for section, attributes in self.sections.items():
            for key in _out_of_bounds(getattr(settings, section), attributes):
                problems.add_value(section, key, merged[section][key], "is out of bounds")
        for name, attributes in self.tables.items():
            for index, row in enumerate(attrgetter(name)(settings)):
                for key in _out_of_bounds(row, attributes):
                    section, _, inner = name.rpartition(".")
                    rows = (merged[section] if section else merged)[inner]
                    problems.add_row_value(name, index, key, rows[index][key], "is out of bounds")

    def _check_relations(self, settings: _T, problems: _Problems) -> None:
        for relation in self._relations:
            value, other = attrgetter(relation.name, relation.other)(settings)
            if value < (needed := relation.factor * other + relation.room):
                show = self._show(relation.name)
                problems.add(
                    f"{relation.name} = {show(value)} is too small, as {relation.why}: with {relation.other} = "
                    f"{show(other)} it must be at least {show(needed)}; raise it or lower the other"
                )

    def _show(self, name: str) -> Callable[[int], str]:
        section, _, key = name.partition(".")
        kind = kind_of(self.sections[section][key].type)
        return str if kind is None else kind.show


class _Problems:
    """Collects the problems of one file and its overrides, and words them."""

    def __init__(self, schema: Schema[Any], source: str, overrides: Mapping[str, object]) -> None:
        self._schema = schema
        self._source = source
        self._overrides = overrides
        self._lines: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, problem: str, *, source: str | None = None) -> None:
        self._lines.append(f"{self._source if source is None else source}: {problem}")

    def expect_tables(self, name: str, found: str, value: object) -> bool:
        """Whether a value is a list of tables; otherwise a problem is added."""
        if isinstance(value, list) and all(isinstance(row, dict) for row in value):
            return True
        self.add(f"{found} must be a list of tables: [[{name}]] before each")
        return False

    def take(self, error: ClassValidationError, merged: dict[str, Any]) -> None:
        """Add the problems in cattrs' tree of errors: sections and lists of tables at its top, settings below."""
        problems, others = error.group_exceptions()
        for problem, note in problems:
            if isinstance(problem, ClassValidationError):
                self._take_section(problem, note.name, merged[note.name])
            elif isinstance(problem, IterableValidationError):
                self._take_table(problem, note.name, merged[note.name])
        for problem in others:
            if isinstance(problem, ForbiddenExtraKeysError):
                for section in sorted(problem.extra_fields):
                    first = f"{section}.{next(iter(merged[section]), '')}"
                    told = self._schema.unknown_name(f"[{section}]", section)
                    self.add(told, source=self._source_of(first))

    def _take_section(self, error: ClassValidationError, section: str, values: dict[str, Any]) -> None:
        attributes = self._schema.sections[section]
        problems, others = error.group_exceptions()
        for problem, note in problems:
            if f"{section}.{note.name}" in self._schema.tables:
                assert isinstance(problem, IterableValidationError)
                self._take_table(problem, f"{section}.{note.name}", values[note.name])
            elif note.name in values:
                self.add_value(section, note.name, values[note.name], str(problem))
            else:
                self.add(f"[{section}] has no {note.name}; allowed: {allowed(attributes[note.name])}")
        for problem in others:
            if isinstance(problem, ForbiddenExtraKeysError):
                for key in sorted(problem.extra_fields):
                    told = self._schema.unknown_name(
                        _assigned(key, values[key], attributes.values()), f"{section}.{key}"
                    )
                    self.add(f"[{section}] {told}", source=self._source_of(f"{section}.{key}"))

    def _take_table(self, error: IterableValidationError, name: str, rows: list[dict[str, Any]]) -> None:
        attributes = self._schema.tables[name]
        for row_error, note in error.group_exceptions()[0]:
            index = note.index
            assert isinstance(row_error, ClassValidationError)
            assert isinstance(index, int)
            problems, others = row_error.group_exceptions()
            for problem, inner in problems:
                if inner.name in rows[index]:
                    self.add_row_value(name, index, inner.name, rows[index][inner.name], str(problem))
                else:
                    self.add(
                        f"[[{name}]] number {index + 1} has no {inner.name}; allowed: {allowed(attributes[inner.name])}"
                    )
            for problem in others:
                if isinstance(problem, ForbiddenExtraKeysError):
                    for key in sorted(problem.extra_fields):
                        told = self._schema.unknown_name(
                            _assigned(key, rows[index][key], attributes.values()), f"{name}.{key}"
                        )
                        self.add(f"[[{name}]] number {index + 1}: {told}")

    def add_value(self, section: str, key: str, value: object, problem: str) -> None:
        attribute = self._schema.sections[section][key]
        self.add(
            f"[{section}] {_assigned(key, value, [attribute])} {problem}; allowed: {allowed(attribute)}",
            source=self._source_of(f"{section}.{key}"),
        )

    def add_row_value(self, name: str, index: int, key: str, value: object, problem: str) -> None:
        attribute = self._schema.tables[name][key]
        told = f"{_assigned(key, value, [attribute])} {problem}; allowed: {allowed(attribute)}"
        self.add(f"[[{name}]] number {index + 1}: {told}")

    def _source_of(self, name: str) -> str:
        return f"override {name}" if name in self._overrides else self._source

    def give_up(self, cause: Exception | None) -> NoReturn:
        raise ConfigurationError("\n".join(self._lines)) from cause


def _assigned(key: str, value: object, attributes: Iterable[attrs.Attribute[Any]]) -> str:
    """The setting as in a file, without its value if one of the attributes that may be meant is a secret.

    Secrets are the attributes that their class excludes from its ``repr``.
    """
    return f"{key} = {_shown(value)}" if all(each.repr for each in attributes) else key


def _shown(value: object) -> str:
    """A value as a message shows it."""
    if isinstance(value, bool):
        return str(value).lower()
    try:
        return repr(value)
    except (ValueError, RecursionError):
        return "a value that is too large to be shown"


def _read(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}; name an existing settings file") from error
    except (ValueError, RecursionError) as error:
        # Besides violations of the standard, the library has limits on digits of a number and on nesting.
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from error


def _attributes_of(attrs_class: type[Any]) -> dict[str, attrs.Attribute[Any]]:
    return attrs.fields_dict(attrs.resolve_types(attrs_class))


def _out_of_bounds(values: object, attributes: Mapping[str, attrs.Attribute[Any]]) -> Iterable[str]:
    for key, attribute in attributes.items():
        if "bounds" in attribute.metadata:
            low, high = attribute.metadata["bounds"]
            if not low <= getattr(values, key) <= high:
                yield key


def _structure_int(value: object, _: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("is not a whole number")
    return value


def _structure_bool(value: object, _: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("is neither true nor false")
    return value


def _structure_kind(value: object, annotation: Any) -> Any:
    kind = kind_of(annotation)
    assert kind is not None
    return kind.parse(value)


def _structure_choice(value: object, choices: type[enum.StrEnum]) -> enum.StrEnum:
    for member in choices:
        if member == value:
            return member
    raise ValueError("is not one of the choices")


_converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True)
_converter.register_structure_hook(int, _structure_int)
_converter.register_structure_hook(bool, _structure_bool)
_converter.register_structure_hook(enum.StrEnum, _structure_choice)
_converter.register_structure_hook_func(lambda annotation: kind_of(annotation) is not None, _structure_kind)
