"""What is special to the operating system's files: short writes, foreign lock holders, failing calls."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from shards.errors import DataDirectoryError
from shards.seams import os_file_system
from shards.seams.clock import ManualClock, SystemClock
from shards.seams.file_system import Buffer
from shards.seams.os_file_system import OsFileSystem

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_short_write_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Guards against taking pwritev's first answer for the whole: Linux may write less than it was given."""
    whole_write = os.pwritev

    def short_write(descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        return whole_write(descriptor, [b"".join(buffers)[:step]], position)

    monkeypatch.setattr(os, "pwritev", short_write)
    buffers = [bytes([number % 251]) * (number % 5) for number in range(1_500)]
    with OsFileSystem().open(str(tmp_path / "a"), create=True) as file:
        file.pwritev(buffers, 3)
        assert file.pread(1 << 20, 3) == b"".join(buffers)


def test_a_write_that_writes_nothing_is_an_error_not_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with OsFileSystem().open(str(tmp_path / "a"), create=True) as file, pytest.raises(OSError, match="wrote nothing"):
        file.pwritev([b"x"], 0)


def test_short_reads_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with OsFileSystem().open(str(tmp_path / "a"), create=True) as file:
        file.pwritev([b"0123456789"], 0)
        whole_pread, whole_preadv = os.pread, os.preadv
        monkeypatch.setattr(os, "pread", lambda descriptor, size, at: whole_pread(descriptor, min(size, 3), at))
        monkeypatch.setattr(os, "preadv", lambda descriptor, into, at: whole_preadv(descriptor, [into[0][:3]], at))
        assert file.pread(100, 1) == b"123456789"
        buffer = bytearray(8)
        assert file.readinto(memoryview(buffer), 1) == 8
        assert buffer == b"12345678"


def test_a_lock_of_another_process_is_refused_with_its_pid_and_ends_with_it(tmp_path: Path) -> None:
    script = (
        "import sys; from shards.seams.os_file_system import OsFileSystem\n"
        "lock = OsFileSystem().lock(sys.argv[1]); print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(DataDirectoryError, match=f"pid {holder.pid}"):
            OsFileSystem().lock(str(tmp_path))
        holder.kill()
        holder.wait()
        OsFileSystem().lock(str(tmp_path)).release()


def test_a_directory_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(
        DataDirectoryError, match=r"/sys/LOCK cannot be written: .*; .*or choose another data directory"
    ):
        OsFileSystem().lock("/sys")


@pytest.mark.parametrize("act", ["open", "pwrite"])
@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "No space left on device; free space on its file system"),
        (errno.EDQUOT, "Disk quota exceeded; free space, or raise the disk quota"),
        (errno.EACCES, "Permission denied; give the user of this process permission"),
        (errno.EPERM, "Operation not permitted; give the user of this process permission"),
        (errno.EROFS, "Read-only file system; its file system is mounted read-only: mount it for writing"),
        (errno.EIO, "Input/output error; its disk or file system has failed"),
    ],
)
def test_a_lock_that_cannot_be_written_has_the_way_out_of_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str, number: int, advice: str
) -> None:
    """The message about a full disk advised to check permissions."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, act, fail)
    with pytest.raises(DataDirectoryError, match=f"{tmp_path}/LOCK cannot be written: {advice}"):
        OsFileSystem().lock(str(tmp_path))


def test_a_failing_syncfs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(os_file_system, "_libc_syncfs", fail)
    with pytest.raises(OSError, match="syncfs: Input/output error") as caught:
        OsFileSystem().sync_all(str(tmp_path))
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("act", ["pwritev", "fdatasync", "fsync", "ftruncate"])
def test_a_failed_write_or_sync_says_what_failed_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = str(tmp_path / "file")
    with OsFileSystem().open(path, create=True) as file:
        monkeypatch.setattr(os, act, fail)
        calls = {
            "pwritev": lambda: file.pwritev([b"x"], 7),
            "fdatasync": file.fdatasync,
            "fsync": file.fsync,
            "ftruncate": lambda: file.truncate(1),
        }
        what = {"pwritev": "write at byte 7", "ftruncate": "truncate"}.get(act, act)
        with pytest.raises(OSError, match=f"{what}: Input/output error: '{path}'") as caught:
            calls[act]()
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == path


def test_clocks() -> None:
    assert abs(SystemClock().now_us() - SystemClock().now_us()) < 60_000_000
    clock = ManualClock(5)
    clock.advance(seconds=1.5, microseconds=2)
    assert clock.now_us() == 1_500_007
    elapsed_from_us = clock.monotonic_us()
    clock.jump(seconds=-1)
    assert (clock.now_us(), clock.monotonic_us()) == (500_007, elapsed_from_us)
    clock.advance(seconds=2)
    assert (clock.now_us(), clock.monotonic_us()) == (2_500_007, elapsed_from_us + 2_000_000)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(seconds=-1)
