"""Which form of the decoder of records tests of batches use: each of them is run with both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shards import compiled


@pytest.fixture(scope="module", params=["python", "c"])
def form_of_record_decoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use the form in Python, or the compiled one."""
    if request.param == "c" and compiled.decode_records is None:
        pytest.skip(f"loops are {compiled.DESCRIPTION}")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(compiled, "decode_records", None)
        yield
