"""The rows that compare both forms of what a broker does for each message that it delivers."""

from __future__ import annotations

import pytest

from benchmarks import message_loops
from benchmarks.load import Timing
from shards import compiled


def test_both_forms_do_the_same_pieces() -> None:
    rows = {row.key: row for row in message_loops.rows()}
    for measurement in message_loops.measurements():
        figures = measurement.run(Timing(warm_up_s=0.0, measured_s=0.05))
        assert all(figure > 0 for figure in figures.values())
        assert set(figures) == (set(measurement.keys) if compiled.decode_records else {measurement.keys[0]})
        pure, quick = [rows.pop(key) for key in measurement.keys]
        assert quick.peer == pure.key
    assert not rows


@pytest.mark.parametrize("work", message_loops.WORK)
def test_both_forms_have_the_same_result(work: str) -> None:
    _, make = message_loops.WORK[work]
    assert make("pure")() == make("compiled")()


def test_one_form_does_a_number_of_pieces_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert message_loops.main(["--work", "encoded.v5", "--form", "pure", "--pieces", "1"]) == 0
    assert capsys.readouterr().out.startswith("encoded.v5, pure: ")
