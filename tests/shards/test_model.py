"""Values that people print: a level or codec was shown as a bare number."""

from __future__ import annotations

import enum

import pytest

from shards.format.compression import Codec
from shards.model import AckLevel


@pytest.mark.parametrize(
    ("value", "shown"), [(AckLevel.DURABLE, "durable"), (AckLevel.MEMORY, "memory"), (Codec.ZSTD, "zstd")]
)
def test_levels_and_codecs_are_shown_by_their_names(value: enum.IntEnum, shown: str) -> None:
    assert str(value) == f"{value}" == shown
