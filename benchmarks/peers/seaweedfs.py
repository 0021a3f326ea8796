"""SeaweedFS, which speaks S3: master, volume server and filer in one process, with its defaults, without telemetry."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

from benchmarks import processes
from journal.logstore.errors import LogStoreError
from journal.logstore.stores.object_store import ObjectLogStore, open_s3

BUCKET: Final = "logs"
_KEY: Final = "benchmark"
_SECRET: Final = "not-so-secret"
_READY_S: Final = 60.0


class Seaweedfs:
    """A running server with one bucket.

    Args:
        directory: Empty directory for its data and log.

    Raises:
        processes.NotInstalledError: SeaweedFS is not installed.
        processes.ProcessError: It did not start.
    """

    def __init__(self, directory: Path) -> None:
        program = processes.installed("weed")
        directory.mkdir(parents=True)
        (directory / "data").mkdir()
        names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
        ports = {name: processes.free_port() for name in (*names, "s3.port", "s3.port.grpc")}
        identity = {
            "name": "benchmark",
            "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
        argv = [
            *(program, "server", f"-dir={(directory / 'data').resolve()}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *("-master.telemetry=false", "-filer", "-s3", f"-s3.config={(directory / 's3.json').resolve()}"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumeSizeLimitMB=256", "-volume.max=20"),
            *(f"-{name}={port}" for name, port in ports.items()),
        ]
        self.endpoint = f"http://127.0.0.1:{ports['s3.port']}"
        self.server = processes.start_listening(argv, ports["s3.port"], directory / "log", cwd=directory)
        # A bucket is a folder of the filer.
        self._wait_ready(f"http://127.0.0.1:{ports['filer.port']}/buckets/{BUCKET}/")

    @property
    def environment(self) -> Mapping[str, str]:
        """What a server needs to reach it."""
        return {"AWS_ENDPOINT_URL": self.endpoint, "AWS_ACCESS_KEY_ID": _KEY, "AWS_SECRET_ACCESS_KEY": _SECRET}

    def open(self) -> ObjectLogStore:
        """A client of it."""
        return open_s3(BUCKET, self.endpoint, access_key_id=_KEY, secret_access_key=_SECRET)

    def close(self) -> None:
        self.server.stop()

    def _wait_ready(self, bucket: str) -> None:
        """Return when the bucket is there and takes an object."""
        give_up_at = time.monotonic() + _READY_S
        while True:
            try:
                urlopen(Request(bucket, method="POST"), timeout=5).close()
                self.open().create("ready/1", b"ready")
            except (OSError, LogStoreError) as error:
                if self.server.process.poll() is not None or time.monotonic() > give_up_at:
                    self.server.stop(kill=True)
                    raise processes.ProcessError(f"SeaweedFS took no object: {error}") from error
                time.sleep(0.05)
            else:
                return
