"""A SeaweedFS server of the tests' own, which speaks S3: one for all tests of a run. It ends with this process."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from journal.logstore.errors import LogStoreError
from journal.logstore.stores.object_store import ObjectLogStore, open_s3
from tests.patience import PATIENCE_S
from tests.ports import free_port

ROOT: Final = Path(__file__).parents[2]
BUCKET: Final = "logs"
KEY: Final = "tests"
SECRET: Final = "not-so-secret"
ACTIONS: Final = ("Admin", "Read", "Write", "List", "Tagging")
"""What the key of the tests may do."""


def find_program() -> str | None:
    return shutil.which("weed", path=os.pathsep.join([str(ROOT / ".peers" / "bin"), os.environ.get("PATH", "")]))


class SeaweedServer:
    """One server: master, volume server, filer and S3 in one process, on this machine's loopback alone."""

    def __init__(self, directory: Path, program: str) -> None:
        self.directory = directory
        self._program = program
        names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
        ports = {name: free_port() for name in names}
        self._ports = [f"-{name}={port}" for name, port in ports.items()]
        self._filer = ports["filer.port"]
        self._s3 = free_port()
        self._s3_grpc = free_port()
        self.endpoint = f"http://127.0.0.1:{self._s3}"
        self._process: subprocess.Popen[bytes] | None = None
        self._write_identity(SECRET, ACTIONS)
        (directory / "data").mkdir()

    def start(self) -> None:
        """Start it, and return when it stores objects."""
        self.spawn()
        self.wait_ready()

    def spawn(self) -> None:
        """Start its process. After SIGKILL it stores objects some 20 s later."""
        assert threading.current_thread() is threading.main_thread(), "other threads may end before the tests do"
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        options = [
            f"-dir={self.directory / 'data'}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            "-filer",
            "-s3",
            f"-s3.port={self._s3}",
            f"-s3.port.grpc={self._s3_grpc}",
            f"-s3.config={self.directory / 's3.json'}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.volumeSizeLimitMB=64",
            "-volume.max=20",
        ]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*guard, self._program, "server", *options, *self._ports], stdout=log, stderr=log, cwd=self.directory
            )

    def kill(self) -> None:
        """SIGKILL; `start` starts it again with all that it had stored."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def allow(self, secret: str = SECRET, actions: Sequence[str] = ACTIONS) -> None:
        """From soon on the key has this secret, and may do this."""
        assert self._process is not None
        self._write_identity(secret, actions)
        # It reads its configuration again.
        self._process.send_signal(signal.SIGHUP)

    def _write_identity(self, secret: str, actions: Sequence[str]) -> None:
        credentials = [{"accessKey": KEY, "secretKey": secret}]
        identity = {"name": "tests", "credentials": credentials, "actions": list(actions)}
        (self.directory / "s3.json").write_text(json.dumps({"identities": [identity]}))

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.directory)

    def open(self, secret: str = SECRET) -> ObjectLogStore:
        return open_s3(BUCKET, self.endpoint, access_key_id=KEY, secret_access_key=secret)

    def wait_ready(self) -> None:
        """Until a bucket can be made and an object be stored in it."""
        assert self._process is not None
        give_up_at = time.monotonic() + PATIENCE_S
        # A bucket is a folder of the filer.
        bucket = Request(f"http://127.0.0.1:{self._filer}/buckets/{BUCKET}/", method="POST")
        is_made = False
        while True:
            try:
                if not is_made:
                    is_made = _make(bucket)
                # A new one each time: to say that one exists it needs only half of what it consists of.
                self.open().create(f"ready/{time.monotonic_ns()}", b"ready")
                return
            except (OSError, LogStoreError):
                if self._process.poll() is not None or time.monotonic() > give_up_at:
                    raise AssertionError(
                        f"SeaweedFS did not start:\n{(self.directory / 'log').read_text()[-3000:]}"
                    ) from None
                time.sleep(0.05)


def _make(bucket: Request) -> bool:
    """Make a folder; one that is there from a start before this one is no error."""
    try:
        urlopen(bucket, timeout=5).close()
    except HTTPError as error:
        with error:
            if error.code != HTTPStatus.CONFLICT:
                raise
    return True


@functools.cache
def _server() -> SeaweedServer | None:
    program = find_program()
    if program is None:
        return None
    server = SeaweedServer(Path(tempfile.mkdtemp(prefix="journal-seaweed-")), program)
    atexit.register(server.stop)
    server.start()
    return server


def shared_server() -> SeaweedServer:
    """The server of this run, started if it was not; skips the test where SeaweedFS is not installed."""
    server = _server()
    if server is None:
        pytest.skip("SeaweedFS is not installed (make peers)")
    return server


@contextmanager
def own_server() -> Iterator[SeaweedServer]:
    """A server that a test may kill and change; skips the test where SeaweedFS is not installed."""
    program = find_program()
    if program is None:
        pytest.skip("SeaweedFS is not installed (make peers)")
    server = SeaweedServer(Path(tempfile.mkdtemp(prefix="journal-seaweed-")), program)
    try:
        server.start()
        yield server
    finally:
        server.stop()
