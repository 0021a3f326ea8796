"""How settings are read, with those of a small program. The server's own are in `test_config`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.settings.file import Relation, Schema
from journal.settings.values import (
    ConfigurationError,
    Kind,
    Size,
    allowed,
    bytes_within,
    format_size,
    parse_address,
    parse_size,
    parse_text,
    within,
)


def _shout(value: object) -> str:
    if not (text := parse_text(value)).isupper():
        raise ValueError("is no shout")
    return text


Shout = Annotated[str, Kind(_shout, "capital letters")]


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@attrs.frozen
class Wheel:
    name: Shout
    size_bytes: Size = attrs.field(default=10, metadata=bytes_within(1, 1024))
    colour: Colour = Colour.RED
    spare: bool | None = None


@attrs.frozen
class Motor:
    cylinders: int = attrs.field(default=4, metadata=within("cylinders", 1, 12))
    valves: int = attrs.field(default=8, metadata=within("valves", 1, 100))
    belts: tuple[Wheel, ...] = ()


@attrs.frozen
class Car:
    motor: Motor = Motor()
    wheels: tuple[Wheel, ...] = ()


def _check(car: Car) -> list[str]:
    return ["three wheels fall over"] if len(car.wheels) == 3 else []


SCHEMA = Schema(
    Car,
    (Relation("motor.valves", 2, 0, "motor.cylinders", "each has two"),),
    _check,
    {"engine": "motor", "tyres": "wheels", "motor.pots": "motor.cylinders", "wheels.tint": "wheels.colour"},
)


def load(tmp_path: Path, text: str, **overrides: object) -> Car:
    path = tmp_path / "car.toml"
    path.write_text(text)
    return SCHEMA.load(path, overrides)


def test_lists_of_tables_at_the_top_and_in_a_section(tmp_path: Path) -> None:
    car = load(
        tmp_path,
        '[motor]\ncylinders = 2\n[[motor.belts]]\nname = "B"\n'
        '[[wheels]]\nname = "L"\n[[wheels]]\nname = "R"\nsize_bytes = "1 KiB"\ncolour = "blue"\nspare = true\n',
    )
    assert car == Car(
        Motor(2, belts=(Wheel("B"),)), (Wheel("L", 10, Colour.RED, None), Wheel("R", 1024, Colour.BLUE, True))
    )
    assert load(tmp_path, "") == Car() == SCHEMA.load(None)


def test_the_schema_distinguishes_plain_settings_from_those_of_tables() -> None:
    assert {name: list(keys) for name, keys in SCHEMA.sections.items()} == {"motor": ["cylinders", "valves"]}
    assert {name: list(keys) for name, keys in SCHEMA.tables.items()} == {
        "motor.belts": ["name", "size_bytes", "colour", "spare"],
        "wheels": ["name", "size_bytes", "colour", "spare"],
    }


def test_each_kind_says_what_is_allowed() -> None:
    assert {name: allowed(attribute) for name, attribute in SCHEMA.tables["wheels"].items()} == {
        "name": "capital letters",
        "size_bytes": "1 B to 1 KiB",
        "colour": '"red" or "blue"',
        "spare": "true or false",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[wheels]]\nname = 'A'\n[[wheels]]\n", "[[wheels]] number 2 has no name; allowed: capital letters"),
        ("[[wheels]]\nname = 'a'", "[[wheels]] number 1: name = 'a' is no shout; allowed: capital letters"),
        ("[[wheels]]\nname = 1", "[[wheels]] number 1: name = 1 is not a text; allowed: capital letters"),
        (
            "[[wheels]]\nname = 'A'\nspare = 1",
            "[[wheels]] number 1: spare = 1 is neither true nor false; allowed: true or false",
        ),
        (
            "[[wheels]]\nname = 'A'\n[[wheels]]\nname = 'B'\nsize_bytes = '1 MiB'",
            "[[wheels]] number 2: size_bytes = '1 MiB' is out of bounds; allowed: 1 B to 1 KiB",
        ),
        (
            "[[wheels]]\nname = 'A'\ncolor = 'red'",
            "[[wheels]] number 1: color = 'red' is unknown; did you mean colour?",
        ),
        ("[[wheel]]\nname = 'A'", "wheel is unknown; did you mean wheels?"),
        ("[engine]\npots = 2", "[engine] has a new name: [motor]"),
        ("[[tyres]]\nname = 'A'", "tyres has a new name: [[wheels]]"),
        ("[motor]\npots = 2", "[motor] pots = 2 has a new name: cylinders in [motor]"),
        ("[[wheels]]\nname = 'A'\ntint = 1", "[[wheels]] number 1: tint = 1 has a new name: colour in [[wheels]]"),
        ("cylinders = 2", "cylinders is unknown here; it belongs to [motor]"),
        ("wheels = 3", "wheels = 3 must be a list of tables: [[wheels]] before each"),
        ("[wheels]\nname = 'A'", "wheels = {'name': 'A'} must be a list of tables: [[wheels]] before each"),
        ("[motor]\nbelts = [1]", "[motor] belts = [1] must be a list of tables: [[motor.belts]] before each"),
        (
            "[[motor.belts]]\nname = 'A'\n[[motor.belts]]\nname = 'B'\nspare = 0",
            "[[motor.belts]] number 2: spare = 0 is neither true nor false; allowed: true or false",
        ),
        (
            "[motor]\ncylinders = 5",
            (
                "motor.valves = 8 is too small, as each has two: with motor.cylinders = 5 it must be at least 10; "
                "raise it or lower the other"
            ),
        ),
        ("[[wheels]]\nname = 'A'\n" * 3, "three wheels fall over"),
    ],
)
def test_what_is_wrong_is_named_with_file_table_key_value_and_what_is_allowed(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    assert str(caught.value) == f"{tmp_path / 'car.toml'}: {expected}"


def test_every_wrong_table_gets_a_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(
            tmp_path,
            "[motor]\nvalves = ''\n[[motor.belts]]\n[[wheels]]\nname = 'A'\nx = 1\n[[wheels]]\nname = 'b'\ncolour = 2",
        )
    assert len(str(caught.value).splitlines()) == 5


@pytest.mark.parametrize("name", ["wheels.name", "motor.belts"])
def test_a_list_of_tables_cannot_be_overridden(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^override .* is a list of tables, which only a file can have$"):
        SCHEMA.load(None, {name: "A"})


@given(st.integers(0, 1 << 60))
def test_a_size_is_read_back_as_it_was_written(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes
    assert parse_size(size_bytes) == size_bytes


@pytest.mark.parametrize("text", ["", "12", "1KB", "-1 MiB", "1 mib", "0.3 B", "MiB", "1e3 KiB", True, 1.5, None])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is no"):
        parse_size(text)


def test_addresses() -> None:
    assert parse_address("") is None
    assert parse_address("localhost:7420") == ("localhost", 7420)
    assert parse_address("0.0.0.0:0") == ("0.0.0.0", 0)
    assert parse_address("[::1]:65535") == ("::1", 65535)
    for wrong in ("localhost", ":7420", "::1:7420", "a:65536", "a:-1", "a b:1", "[x]y:1"):
        with pytest.raises(ValueError, match="is not an address"):
            parse_address(wrong)
    for wrong in ("a..b:1", ".example:1", f"{'a' * 64}.example:1", f"{'a.' * 150}example:1"):
        with pytest.raises(ValueError, match="is not the name of a host"):
            parse_address(wrong)
