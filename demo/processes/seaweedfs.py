"""SeaweedFS, which speaks S3: master, volume server, filer and S3 in one process."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

import trio

from demo.errors import DemoError
from demo.processes.ports import free_port
from demo.processes.process import ManagedProcess
from demo.waiting import ask_until
from journal.logstore.errors import LogStoreError
from journal.logstore.stores.object_store import ObjectLogStore, open_s3

BUCKET: Final = "logs"
_KEY: Final = "demo"
_SECRET: Final = "not-so-secret"
_PEERS: Final = Path(__file__).parents[2] / ".peers" / "bin"
_READY_S: Final = 60.0
_REQUEST_S: Final = 5.0


def find_seaweedfs() -> str:
    """The program.

    Raises:
        DemoError: It is not installed.
    """
    program = shutil.which("weed", path=os.pathsep.join([str(_PEERS), os.environ.get("PATH", "")]))
    if program is None:
        raise DemoError("SeaweedFS is not installed, and the servers need it for their log: `make peers` installs it")
    return program


class Seaweedfs(ManagedProcess):
    """One server with one bucket.

    Args:
        directory: Directory for its data and its log.
        address: Where it listens.
        port: Port for S3.

    Raises:
        DemoError: It is not installed.
    """

    def __init__(self, directory: Path, address: str, port: int) -> None:
        directory.mkdir()
        (directory / "data").mkdir()
        names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
        ports = {name: free_port() for name in (*names, "s3.port.grpc")} | {"s3.port": port}
        identity = {
            "name": "demo",
            "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
        command = [
            *(find_seaweedfs(), "server", f"-dir={directory / 'data'}", f"-ip={address}", f"-ip.bind={address}"),
            *("-master.telemetry=false", "-filer", "-s3", f"-s3.config={directory / 's3.json'}"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumeSizeLimitMB=64", "-volume.max=20"),
            *(f"-{name}={number}" for name, number in ports.items()),
        ]
        super().__init__("SeaweedFS", command, directory / "log", directory=directory)
        self.endpoint = f"http://{address}:{port}"
        # A bucket is a folder of the filer.
        self._has_bucket = False
        self._bucket = f"http://{address}:{ports['filer.port']}/buckets/{BUCKET}/"

    async def start(self) -> None:
        """Start it, and wait until there is a bucket that takes an object.

        Raises:
            DemoError: It ended, or took too long.
        """
        await self.launch()
        await ask_until(f"SeaweedFS took no object (see {self.log_path})", self._takes_objects, within_s=_READY_S)

    def open(self) -> ObjectLogStore:
        """A client of it."""
        return open_s3(BUCKET, self.endpoint, access_key_id=_KEY, secret_access_key=_SECRET)

    @staticmethod
    def credentials(endpoint: str) -> Mapping[str, str]:
        """What a server needs in its environment to reach it."""
        return {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": _KEY, "AWS_SECRET_ACCESS_KEY": _SECRET}

    async def _takes_objects(self) -> bool:
        if not self.is_running:
            raise DemoError(f"SeaweedFS ended; {self.last_words()}")
        return await trio.to_thread.run_sync(self._try_object)

    def _try_object(self) -> bool:
        try:
            if not self._has_bucket:
                urlopen(Request(self._bucket, method="POST"), timeout=_REQUEST_S).close()
                self._has_bucket = True
            store = self.open()
            try:
                store.create("ready/1", b"ready")
            finally:
                store.close()
        except (OSError, LogStoreError):
            return False
        return True
