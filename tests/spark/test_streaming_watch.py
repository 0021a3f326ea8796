"""Looking again and again at a data directory, without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shards.model import SegmentKind
from spark_export.options import parse_options
from spark_export.read_history import ReadHistory
from spark_export.shard_watch import ShardWatch
from spark_export.snapshot import Snapshot
from tests.faults.processes import running
from tests.spark.streams import append

ROOT = Path(__file__).parents[2]
NOTHING = ReadHistory()
APPEND = "from pathlib import Path; from tests.spark.streams import append; append(Path({path!r}), a=[b'x'])"


def ends(found: Snapshot) -> dict[str, int]:
    return {shard.name: shard.next_offset for shard in found.shards}


@pytest.mark.slow("runs Spark")
def test_a_directory_at_rest_is_opened_again_only_when_another_process_has_used_it(tmp_path: Path) -> None:
    append(tmp_path / "data", a=[b"x", b"y"])
    watch = ShardWatch(parse_options({"path": str(tmp_path / "data")}, "stream"))
    first = watch.look(NOTHING)
    assert ends(first) == {"a": 2}
    assert watch.look(NOTHING) is first
    assert watch.segments(["a"], NOTHING) is first
    script = APPEND.format(path=str(tmp_path / "data"))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    assert ends(watch.look(NOTHING)) == {"a": 3}


@pytest.mark.slow("runs Spark")
def test_a_server_is_asked_for_the_segments_of_the_shards_that_are_read_alone(tmp_path: Path) -> None:
    append(tmp_path / "data", a=[b"x"], b=[b"x"])
    watch = ShardWatch(parse_options({"path": str(tmp_path / "data")}, "stream"))
    with running(tmp_path / "data") as server:
        found = watch.look(NOTHING)
        assert found.store.server == f"journal://127.0.0.1:{server.ports['tcp']}"
        assert ends(found) == {"a": 1, "b": 1}
        segments = watch.segments(["b"], NOTHING)
        assert ends(segments) == {"b": 1}
        assert [one.kind for one in segments.shards[0].segments] == [SegmentKind.LOG]
    # When the server is gone, the directory is looked into again.
    append(tmp_path / "data", b=[b"y"])
    assert ends(watch.look(NOTHING)) == {"a": 1, "b": 2}
