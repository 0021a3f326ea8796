"""The manifest of a checkpoint in the log store, and which checkpoint a server with an empty directory begins with."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.engine.shared_log.manifests import ManifestFile, decode_manifest, encode_manifest
from journal.engine.shared_log.stored_files import StoredFiles
from journal.engine.shared_log.stored_views import LOG_ENDS, StoredViews, decode_log_ends, encode_log_ends
from journal.engine.shared_log.transfers import DirectTransfers
from journal.engine.shared_log.writer import ResumePoint
from journal.engine.wal.disk import at_once
from journal.logstore import run
from journal.logstore.errors import LogDamagedError, StoreDeposedError
from journal.logstore.keys import FileName, Position, file_folder, piece_of
from journal.logstore.ownership import Member, own
from journal.logstore.stores.memory import MemoryLogStore
from shards.errors import FormatVersionError
from shards.seams.memory_file_system import MemoryFileSystem

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "logstore" / "manifest.json"
MEMBER: Final = Member("root", b"S" * 16, b"N" * 16)
RIVAL: Final = Member("root", b"S" * 16, b"R" * 16)
SAMPLE: Final = (
    ManifestFile("000012.sst", "1122334455667788", 4096, "ab" * 32),
    ManifestFile("CURRENT", "0000000000000001", 16, "00" * 32),
)
ENDS: Final = [(7, 0, 100), (2**64 - 1, 5, 1)]

hexadecimal = st.binary(min_size=8, max_size=8).map(bytes.hex)
files = st.builds(
    ManifestFile,
    st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}", fullmatch=True),
    hexadecimal,
    st.integers(0, 2**40),
    st.binary(min_size=32, max_size=32).map(bytes.hex),
)


def test_the_golden_bytes_are_what_is_written_today() -> None:
    assert encode_manifest(SAMPLE) == GOLDEN.read_bytes()
    assert decode_manifest("key", GOLDEN.read_bytes()).files == SAMPLE


@given(st.lists(files))
def test_a_manifest_is_decoded_as_it_was_encoded(some: list[ManifestFile]) -> None:
    assert list(decode_manifest("key", encode_manifest(some)).files) == some


@given(st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 3)))
def test_the_ends_of_log_files_are_decoded_as_they_were_encoded(ends: list[tuple[int, int, int]]) -> None:
    assert list(decode_log_ends(encode_log_ends(ends))) == ends


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": "../FORMAT"}, "an impossible file"),
        ({"path": "a/b"}, "an impossible file"),
        ({"path": ""}, "an impossible file"),
        ({"file_id": "12"}, "an impossible file"),
        ({"sha256": "ab"}, "an impossible file"),
        ({"size_bytes": -1}, "an impossible file"),
    ],
)
def test_a_manifest_that_leads_out_of_the_directory_or_says_nonsense_is_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(LogDamagedError, match=message):
        decode_manifest("key", encode_manifest([attrs.evolve(SAMPLE[0], **changes)]))


@given(st.binary())
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises((LogDamagedError, FormatVersionError)):
        decode_manifest("key", data)


def test_a_newer_version_is_refused_as_such() -> None:
    with pytest.raises(FormatVersionError, match="has version 2 of a manifest; this program reads 1"):
        decode_manifest("key", b'{"version": 2, "files": []}')


class Server:
    """The views of one server, and the checkpoints that it knows of."""

    def __init__(self, store: MemoryLogStore, member: Member = MEMBER) -> None:
        self.store = store
        self.member = member
        self.files = MemoryFileSystem()
        for directory in ("/data/snapshot", "/data/log"):
            self.files.mkdir(directory)
        stored = StoredFiles(store, member, self.files, at_once, DirectTransfers(store, member, self.files, at_once))
        self.views = StoredViews(store, member, stored, self.files, at_once)
        self.epoch = 0

    def own(self) -> None:
        self.epoch = run(self.store, own(self.member, secrets.token_bytes(16))).epoch

    def write(self, name: str, content: bytes) -> None:
        file = self.files.open(f"/data/snapshot/{name}", create=True)
        file.truncate(0)
        file.pwritev([content], 0)

    async def publish(self, slot: int) -> None:
        """Store a checkpoint whose only new content is its slot."""
        self.write("CURRENT", b"the same for all")
        self.write("000001.sst", b"table %d" % slot)
        self.write(LOG_ENDS, encode_log_ends(ENDS))
        point = ResumePoint(Position(self.epoch, slot), slot)
        await self.views.publish(point, "/data/snapshot", self.epoch)

    async def restored(self) -> bytes | None:
        """What a server with an empty directory has in its table."""
        if not await self.views.restore("/data/state", "/data/log"):
            return None
        assert self.files.listdir("/data/state") == ["000001.sst", "CURRENT"]
        return self.read("/data/state/000001.sst")

    def read(self, path: str) -> bytes:
        file = self.files.open(path, write=False)
        return bytes(file.pread(file.size(), 0))


def stored_in(store: MemoryLogStore) -> set[FileName]:
    return {name for name, _ in filter(None, map(piece_of, store.list_after(file_folder("root"))))}


async def test_without_a_checkpoint_nothing_is_restored() -> None:
    assert await Server(MemoryLogStore()).restored() is None


async def test_the_newest_checkpoint_is_restored_with_files_in_the_places_of_log_files() -> None:
    owner = Server(MemoryLogStore())
    owner.own()
    for slot in (3, 9):
        await owner.publish(slot)
    other = Server(owner.store, RIVAL)
    assert await other.restored() == b"table 9"
    assert other.read("/data/log/07/0000000000000007-00000000000000000000.log") == bytes(100)
    assert other.read("/data/log/ff/ffffffffffffffff-00000000000000000005.log") == bytes(1)


async def test_a_file_that_an_earlier_checkpoint_has_is_not_stored_again() -> None:
    owner = Server(MemoryLogStore())
    owner.own()
    await owner.publish(3)
    before = stored_in(owner.store)
    await owner.publish(9)
    assert len(stored_in(owner.store) - before) == 1


async def test_the_files_of_a_checkpoint_are_needed_as_long_as_it_exists() -> None:
    owner = Server(MemoryLogStore())
    owner.own()
    for slot in (3, 9, 12):
        await owner.publish(slot)
    assert all(map(owner.views.names, stored_in(owner.store)))
    await owner.views.collect(owner.epoch)
    assert sum(not owner.views.names(name) for name in stored_in(owner.store)) == 1
    assert owner.views.newest == Position(owner.epoch, 12)
    assert await Server(owner.store).restored() == b"table 12"


async def test_a_checkpoint_of_which_a_file_is_gone_is_passed_over_and_does_not_count() -> None:
    owner = Server(MemoryLogStore())
    owner.own()
    for slot in (3, 9, 12):
        await owner.publish(slot)
        if slot == 9:
            before = stored_in(owner.store)
    (key,) = (key for key in owner.store.list_after(file_folder("root")) if (p := piece_of(key)) and p[0] not in before)
    owner.store.delete(key)
    assert await Server(owner.store).restored() == b"table 9"
    await owner.views.collect(owner.epoch)
    assert await Server(owner.store).restored() == b"table 9"
    other = Server(owner.store)
    for key in owner.store.list_after(file_folder("root")):
        owner.store.delete(key)
    with pytest.raises(LogDamagedError, match=r"names the file 0000000-[0-9a-f]{16}, which is not in the log store"):
        await other.restored()
    assert other.files.listdir("/data/state") == []
    after = Server(owner.store, RIVAL)
    after.own()
    await after.views.load()
    for slot in (0, 1):
        await after.publish(slot)
    await after.views.collect(after.epoch)
    assert await Server(owner.store).restored() == b"table 1"


async def test_a_former_owner_stores_and_deletes_nothing() -> None:
    owner = Server(MemoryLogStore())
    owner.own()
    await owner.publish(3)
    Server(owner.store, RIVAL).own()
    with pytest.raises(StoreDeposedError):
        await owner.publish(9)
    with pytest.raises(StoreDeposedError):
        await owner.views.collect(owner.epoch)
    assert await Server(owner.store).restored() == b"table 3"


async def test_what_a_restoration_left_that_was_killed_is_removed_first() -> None:
    owner = Server(MemoryLogStore())
    owner.own()
    await owner.publish(3)
    other = Server(owner.store)
    other.files.mkdir("/data/state")
    for name in ("000099.sst", LOG_ENDS, ".node"):
        other.files.open(f"/data/state/{name}", create=True)
    assert await other.views.restore("/data/state", "/data/log")
    assert other.files.listdir("/data/state") == [".node", "000001.sst", "CURRENT"]


async def test_a_restoration_that_ends_within_its_last_file_leaves_no_store() -> None:
    """It left a CURRENT with a part of its bytes, or with wrong ones. Then no later start was possible."""
    owner = Server(MemoryLogStore())
    owner.own()
    await owner.publish(3)
    (manifest,) = owner.views._manifests.values()
    wrong = [attrs.evolve(file, sha256="00" * 32) if file.path == "CURRENT" else file for file in manifest.files]
    other = Server(owner.store)
    other.views._manifests[Position(owner.epoch, 3)] = attrs.evolve(manifest, files=tuple(wrong))
    with pytest.raises(LogDamagedError, match="is not the CURRENT that a checkpoint names"):
        await other.restored()
    assert not other.files.exists("/data/state/CURRENT")
    assert await Server(owner.store).restored() == b"table 3"


async def test_a_file_with_other_bytes_than_the_manifest_says_is_refused() -> None:
    owner = Server(MemoryLogStore())
    owner.own()
    await owner.publish(3)
    manifest = next(iter(owner.views._manifests.values()))
    wrong = [attrs.evolve(file, sha256="00" * 32) if file.path == "000001.sst" else file for file in manifest.files]
    other = Server(owner.store)
    other.views._manifests[Position(owner.epoch, 3)] = attrs.evolve(manifest, files=tuple(wrong))
    with pytest.raises(LogDamagedError, match=r"is not the 000001\.sst that a checkpoint names"):
        await other.views.restore("/data/state", "/data/log")
