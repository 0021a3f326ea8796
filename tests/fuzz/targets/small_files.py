"""Manifests of backups, and the small JSON files that say whose a directory is."""

from __future__ import annotations

import contextlib
import hashlib
import re

import attrs

from journal.backup.manifest import VERSION, FileEntry, Header, ManifestDecoder, ManifestEncoder, lines_of, order_of
from journal.engine.directory.json_files import read_json, read_marker
from shards.errors import CorruptionError, FormatVersionError
from tests.fuzz.memory_files import memory_files
from tests.fuzz.target import Target

_LAST_LINE = b'{"files":'
_DIGEST = re.compile(rb'("(?:lines|sealed)_sha256":")[0-9a-f]*(")')
_COUNT = re.compile(rb'("files":)[0-9]+')
_SIZE = re.compile(rb'("size_bytes":)([0-9]{1,20})')
_CHUNK = 100


def run_manifests(data: bytes) -> None:
    """A manifest is read or refused by CorruptionError or FormatVersionError; no path in it leads out of a directory.

    One that is read encodes to lines that read the same, in whatever chunks they come.
    """
    whole = _read([data])
    assert _read([data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK)]) == whole
    if whole is None:
        return
    header, entries = attrs.evolve(whole[0], version=VERSION), whole[1]
    for entry in entries:
        assert not entry.path.startswith("/")
        assert ".." not in order_of(entry.path)
    encoder = ManifestEncoder()
    lines = [encoder.header(header), *map(encoder.entry, entries)]
    assert _read([b"".join(lines), encoder.last_line()]) == (header, entries)


def _read(chunks: list[bytes]) -> tuple[Header, list[FileEntry]] | None:
    try:
        decoder = ManifestDecoder("/manifest", lines_of(chunks, "/manifest"))
        entries = list(decoder.entries())
    except (CorruptionError, FormatVersionError):
        return None
    assert decoder.last_line is not None
    return decoder.header, entries


def _repair_manifest(data: bytes) -> bytes:
    """Make count, size and digest in the last line fit the lines before it."""
    at = data.rfind(_LAST_LINE)
    if at < 0:
        return data
    before, last = data[:at], data[at:]
    size = sum(int(found[2]) for found in _SIZE.finditer(before))
    last = _DIGEST.sub(rb"\g<1>%b\g<2>" % hashlib.sha256(before).hexdigest().encode(), last)
    last = _COUNT.sub(rb"\g<1>%d" % max(0, before.count(b"\n") - 1), last)
    return before + _SIZE.sub(rb"\g<1>%d" % size, last)


def _manifest_seeds() -> list[bytes]:
    made = []
    for count in (0, 1, 4):
        encoder = ManifestEncoder()
        lines = [encoder.header(Header(VERSION, 3, "a" * 16, 77, 5))]
        lines += [
            encoder.entry(FileEntry(f"log/0{number}/x-{number}.log", 10 * number, 5, "0" * 64))
            for number in range(count)
        ]
        made.append(b"".join([*lines, encoder.last_line()]))
    return made


def run_markers(data: bytes) -> None:
    """The file that says whose a directory is, is read or refused by CorruptionError or FormatVersionError."""
    files = memory_files({"/data/FORMAT": data})
    try:
        node_id = read_marker(files, "/data/FORMAT", kind="data layout", version=1, way_out="update")
        assert isinstance(node_id, str)
    except (CorruptionError, FormatVersionError):
        pass
    with contextlib.suppress(CorruptionError):
        read_json(files, "/data/FORMAT")


_TOKENS = (
    b"[" * 1200,
    b'{"a":' * 60,
    b"null",
    b"-1",
    b"1e999",
    b"9" * 4000,
    b'"version":',
    b"NaN",
    b"\xff",
    b"\xed\xa0\x80",
)

TARGETS = (
    Target("manifests", run_manifests, _manifest_seeds, _repair_manifest, (*_TOKENS, b"\n", b"../", b"\\u0000", b"//")),
    Target("markers", run_markers, lambda: [b'{"version": 1, "node_id": "0123456789abcdef"}\n'], tokens=_TOKENS),
)
