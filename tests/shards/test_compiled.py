"""The compiled loops: which form is used and why, what the module was built of, and its checksum."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shards.compiled
from broker_adapter.mqtt_codec import primitives, publish_bodies
from broker_adapter.mqtt_codec.packet_types import PacketType
from shards import compiled
from shards.format import batch_header, columns
from shards.format.checksum import crc32c
from shards.idempotence import producer_state

FOLDER = Path(shards.compiled.__file__).parent
needs_compiled = pytest.mark.skipif(compiled.append_loop_type is None, reason=f"loops are {compiled.DESCRIPTION}")


def described(directory: Path | None = None, **environment: str) -> str:
    """What a new process says of the loops; with those of a directory, if one is given."""
    program = (
        "from shards import compiled as c;"
        "loops = {c.append_loop_type, c.decode_records, c.encode_binary, c.size_of_items, c.publish_template};"
        "loops |= {c.read_packets};"
        "print(*{loop is not None for loop in loops}, c.DESCRIPTION)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**{name: value for name, value in os.environ.items() if name != compiled.PURE_PYTHON}, **environment},
        capture_output=True,
        text=True,
        check=True,
        cwd=directory,
    )
    return done.stdout.strip()


def copied(directory: Path) -> Path:
    """The package in a directory, without the module."""
    copy = directory / "shards" / "compiled"
    copy.mkdir(parents=True)
    (copy.parent / "__init__.py").touch()
    (copy / "__init__.py").write_bytes((FOLDER / "__init__.py").read_bytes())
    return copy


def test_the_environment_switches_them_off() -> None:
    assert described(JOURNAL_PURE_PYTHON="1") == "False Python (JOURNAL_PURE_PYTHON is set)"
    assert "JOURNAL_PURE_PYTHON" not in described(JOURNAL_PURE_PYTHON="")


def test_without_the_module_everything_is_in_python(tmp_path: Path) -> None:
    copied(tmp_path)
    assert described(tmp_path) == "False Python (the compiled ones were not built)"


def test_a_module_that_cannot_be_loaded_is_not_used(tmp_path: Path) -> None:
    copy = copied(tmp_path)
    (copy / "_loops.abi3.so").write_bytes(b"no shared library")
    assert described(tmp_path).startswith("False Python (the compiled ones cannot be loaded: ")


def test_a_module_of_another_version_is_not_used(tmp_path: Path) -> None:
    """As one that was built before the sources were changed."""
    copy = copied(tmp_path)
    for text in ("", f"INTERFACE = {compiled.INTERFACE + 1}"):
        (copy / "_loops.py").write_text(text)
        assert described(tmp_path) == "False Python (the compiled ones are of another version)"


@needs_compiled
def test_the_module_is_built_of_the_sources_beside_it() -> None:
    """Otherwise `make setup` builds it again."""
    from shards.compiled import _loops

    value = 0
    for path in sorted([*FOLDER.glob("*.c"), *FOLDER.glob("*.h")]):
        value = zlib.crc32(path.read_bytes(), value)
    assert f"{value:08x}" == _loops.SOURCES


@needs_compiled
@given(data=st.binary(max_size=200), value=st.integers(0, 2**32 - 1))
def test_its_checksum_is_that_of_all_formats(data: bytes, value: int) -> None:
    from shards.compiled import _loops

    assert _loops.crc32c(data, value) == _loops.crc32c(data, value, False) == crc32c(data, value)


@needs_compiled
@given(
    blocks=st.integers(0, 2),
    rest=st.integers(-9, 9) | st.integers(0, 3 * 4096),
    seed=st.integers(0, 255),
    value=st.integers(0, 2**32 - 1),
)
def test_its_checksum_of_long_data_is_as_well(blocks: int, rest: int, seed: int, value: int) -> None:
    """Long data is added up in three streams of blocks."""
    from shards.compiled import _loops

    data = bytes((seed + at * at) & 0xFF for at in range(max(0, 3 * 4096 * blocks + rest)))
    assert _loops.crc32c(data, value) == _loops.crc32c(data, value, False) == crc32c(data, value)


@pytest.mark.parametrize(
    ("source", "name", "value"),
    [
        ("append_loop", "MAX_RECORD_COUNT", batch_header.MAX_RECORD_COUNT),
        ("append_loop", "MAX_RAW_BYTES", batch_header.MAX_RAW_BYTES),
        ("append_loop", "ALL_COLUMNS", columns.ALL_COLUMNS),
        ("append_loop", "MAX_CODEC", batch_header.MAX_CODEC),
        ("append_loop", "BATCH_HEAD_BYTES", batch_header.HEADER_SIZE),
        ("append_loop", "REMEMBERED_RUNS", producer_state.REMEMBERED_RUNS),
        ("append_loop", "HALF_OF_SEQUENCES", producer_state.HALF),
        ("module", "INTERFACE", compiled.INTERFACE),
        ("packet_reader", "PUBLISH", int(PacketType.PUBLISH) << 4),
        ("packet_reader", "PUBACK", int(PacketType.PUBACK) << 4),
        ("packet_reader", "RETAIN", publish_bodies.RETAIN),
        ("packet_reader", "DUP", publish_bodies.DUP),
        ("packet_reader", "MAX_VARIABLE_BYTES", primitives.MAX_VARIABLE_BYTES),
        *[
            ("record_decoder", f"COLUMN_{name}", value)
            for name, value in vars(columns.Column).items()
            if not name.startswith("_")
        ],
    ],
)
def test_its_numbers_are_those_of_the_formats(source: str, name: str, value: int) -> None:
    text = (FOLDER / f"{source}.c").read_text()
    (found,) = re.findall(rf"^#define {name} ([^/\n]+)", text, re.MULTILINE)
    assert eval(found.replace("(int64_t)", "")) == value
