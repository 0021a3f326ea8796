"""Who may add files, and what is left of writers that died, hung, or had no room."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from broker_adapter.sinks import DriverFencedError, SinkUnavailableError
from broker_adapter.sinks.files.queue_files import QueueFiles
from tests.sinks.stage import batch_of, batches_of, bring, open_sink, row
from tests.sinks.stages.files import FilesStage

QUEUE_ID = "queue-1"


def files_of(directory: Path, epoch: int = 1, queue_id: str = QUEUE_ID) -> QueueFiles:
    return QueueFiles(directory, queue_id, ".ndjson", epoch)


def put(files: QueueFiles, first_offset: int, count: int, turn: int | None = None) -> None:
    rows = [row(n) for n in range(first_offset, first_offset + count)]
    files.put(batch_of(rows, first_offset), b"contents", files.new_turn() if turn is None else turn)


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_names_say_which_offsets_a_file_has(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    assert files.take_over() is None
    put(files, 7, 3)
    put(files, 12, 1)
    assert names(tmp_path) == [
        ".queue-1.epoch",
        "queue-1-00000000000000000007-00000000000000000010.ndjson",
        "queue-1-00000000000000000012-00000000000000000013.ndjson",
    ]
    assert files_of(tmp_path, 2).take_over() == 13


def test_queues_whose_names_begin_alike_are_apart(tmp_path: Path) -> None:
    longer = files_of(tmp_path, queue_id=f"{QUEUE_ID}-00000000000000000001")
    longer.take_over()
    put(longer, 100, 1)
    assert files_of(tmp_path).take_over() is None


def test_what_a_dead_writer_left_is_removed_and_not_counted(tmp_path: Path) -> None:
    left = tmp_path / ".queue-1-00000000000000000000-00000000000000000005.ndjson.tmp"
    others = tmp_path / ".queue-2-00000000000000000000-00000000000000000005.ndjson.tmp"
    for path in (left, others):
        path.write_bytes(b"half")
    assert files_of(tmp_path).take_over() is None
    assert not left.exists()
    assert others.exists()


def test_a_writer_that_was_given_up_does_not_write_once_the_position_was_asked_for(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    turn = files.new_turn()
    files.take_over()
    outcome: list[BaseException | None] = []

    def write_late() -> None:
        try:
            put(files, 0, 3, turn)
        except SinkUnavailableError as error:
            outcome.append(error)
        else:
            outcome.append(None)

    late = threading.Thread(target=write_late)
    with files._locked():  # the disk hangs for another process
        late.start()
        files.new_turn()
    late.join(10)
    assert [type(each) for each in outcome] == [SinkUnavailableError]
    assert files.take_over() is None


def test_a_driver_of_a_lower_epoch_does_nothing(tmp_path: Path) -> None:
    old, new = files_of(tmp_path, 1), files_of(tmp_path, 2)
    old.take_over()
    new.take_over()
    for call in (old.probe, old.take_over, lambda: put(old, 0, 1)):
        with pytest.raises(DriverFencedError, match="has seen epoch 2 of queue-1; this driver has 1"):
            call()
    assert names(tmp_path) == [".queue-1.epoch"]


def test_an_epoch_that_cannot_be_read_blocks_all_writers(tmp_path: Path) -> None:
    (tmp_path / ".queue-1.epoch").write_bytes(b"12")
    with pytest.raises(OSError, match="the epoch file is damaged"):
        files_of(tmp_path).take_over()


async def test_a_disk_that_hangs_is_an_outage_and_what_it_still_takes_is_known_afterwards(tmp_path: Path) -> None:
    stage = FilesStage(tmp_path / "sink")
    await stage.start()
    batches = batches_of(3, 5)
    async with open_sink(stage, timeout_s=1) as sink:
        await bring(sink, batches[:1])
        with files_of(stage.directory)._locked():
            for _ in range(3):  # more than there are threads
                with pytest.raises(SinkUnavailableError, match=f"{stage.directory} did not take a file within"):
                    await sink.write(batches[1])
        await bring(sink, batches)
    assert [each["n"] for each in await stage.rows()] == list(range(15))


async def test_a_write_that_is_cancelled_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    stage = FilesStage(tmp_path / "sink")
    await stage.start()
    batches = batches_of(3, 5)
    async with open_sink(stage) as sink:
        await bring(sink, batches[:1])
        with files_of(stage.directory)._locked(), trio.move_on_after(0.1) as scope:
            await sink.write(batches[1])
        assert scope.cancelled_caught
        await sink.check()
        assert await sink.position() in (5, 10)
        await bring(sink, batches)
    assert [each["n"] for each in await stage.rows()] == list(range(15))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "sink"
    directory.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(directory)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


async def test_a_full_disk_is_an_outage_that_leaves_nothing_behind(small_disk: Path) -> None:
    stage = FilesStage(small_disk)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(24 * 1024))
    large = batch_of([row(n, body=random.randbytes(40 * 1024).hex()) for n in range(5, 6)], 5)
    async with open_sink(stage) as sink:
        await bring(sink, batches_of(1, 5))
        with pytest.raises(SinkUnavailableError, match=r"No space left on device; free disk space"):
            await sink.write(large)
        assert not [name for name in names(small_disk) if name.endswith(".tmp")]
        filler.unlink()
        await bring(sink, [large])
    assert [each["n"] for each in await stage.rows()] == list(range(6))


WRITER = """\
import sys, trio
from pathlib import Path
from tests.sinks.stage import batches_of, bring, open_sink
from tests.sinks.stages.files import FilesStage

async def main():
    async with open_sink(FilesStage(Path(sys.argv[1])), epoch=int(sys.argv[2])) as sink:
        print("ready", flush=True)
        await bring(sink, batches_of(400, 5))

trio.run(main)
"""


@pytest.mark.slow("kills writers")
async def test_a_writer_that_is_killed_anywhere_leaves_whole_files_without_gaps(tmp_path: Path) -> None:
    stage = FilesStage(tmp_path / "sink")
    await stage.start()
    draw = random.Random(7)
    for epoch in range(1, 4):
        command = [sys.executable, "-c", WRITER, str(stage.directory), str(epoch)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            wanted = len(names(stage.directory)) + draw.randrange(1, 40)
            while len(names(stage.directory)) < wanted and writer.poll() is None:
                time.sleep(0.001)
            writer.send_signal(signal.SIGKILL)
    found = [each["n"] for each in await stage.rows()]
    assert found == list(range(len(found)))
    assert files_of(stage.directory, 9).take_over() == len(found)
    async with open_sink(stage, epoch=10) as sink:
        await bring(sink, batches_of(400, 5))
    assert [each["n"] for each in await stage.rows()] == list(range(2000))
