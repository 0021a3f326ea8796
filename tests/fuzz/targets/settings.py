"""Settings files of the server and of the broker."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker_adapter.mqtt.config import load_broker_config
from journal.settings.server_file import load_config
from journal.settings.values import ConfigurationError
from tests.fuzz.target import Target

_CONF = Path(__file__).parents[3] / "conf"
_files: dict[int, int] = {}


def _write(data: bytes) -> str:
    """Put data into a file of this process alone, which is in memory: settings are read from a path."""
    descriptor = _files.get(os.getpid())
    if descriptor is None:
        descriptor = _files[os.getpid()] = os.memfd_create("settings")
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, data, 0)
    return f"/proc/self/fd/{descriptor}"


def _run(load: Callable[[str], Any], data: bytes) -> None:
    path = _write(data)
    try:
        first = load(path)
    except ConfigurationError as error:
        assert str(error)
        return
    assert load(path) == first


def run_server_settings(data: bytes) -> None:
    """A settings file of the server is read, or refused by ConfigurationError with a line for each problem."""
    _run(load_config, data)


def run_broker_settings(data: bytes) -> None:
    """A settings file of the broker is read, or refused by ConfigurationError with a line for each problem."""
    _run(load_broker_config, data)


def _uncommented(name: str) -> bytes:
    """The example with its commented settings as settings, as far as a line of it is one."""
    lines = (_CONF / name).read_text().splitlines()
    return "\n".join(
        line.removeprefix("# ") if " = " in line or line.startswith("# [") else line for line in lines
    ).encode()


def _sections(name: str) -> list[bytes]:
    whole = (_CONF / name).read_bytes()
    parts = [b"[" + part for part in whole.split(b"\n[")]
    return [part[:3000] for part in parts[1:]]


_SERVER = (
    b'[storage]\nsegment_bytes = "1 GiB"\njournal_file_bytes = 1_000_000\n',
    b'[listen]\ntcp = "127.0.0.1:7420"\nwebsocket = ""\nhttp = "[::1]:80"\norigins = ["https://a"]\n',
    (
        b'[tls]\ncertificate_file = "a"\nkey_file = "b"\n[access]\nusers_file = "u"\n'
        b'[[access.rules]]\nusers = ["a"]\nshards = ["a/#"]\nactions = ["read"]\n[[quotas]]\nuser = "a"\n'
    ),
    b'[log]\nlevel = "info"\nformat = "json"\n[limits]\nmax_connections = 5\n[shards]\nmode = "memory"\n',
)
_BROKER = (
    b'[broker]\nid = "b"\nstore = "journal://h"\n[listen]\nmqtt = "127.0.0.1:1883"\n',
    b'[[storage]]\ntopics = "a/#"\nqos = [0, 1]\nstorage = "memory"\noffline = true\n',
    b'[[mapping]]\ntopics = "a/#"\nprefix = "p"\nshards = 4\nby = "topic"\n',
    b'[[bridge]]\nname = "b"\ntopics = ["a/#"]\nsink = { kind = "http", url = "http://h/" }\n',
    b'[[bridge]]\nname = "c"\ntopics = ["#"]\nfields = { a = "value" }\nsink = { kind = "redis", url = "redis://h" }\n',
    b'[[bridge]]\nname = "d"\ntopics = ["#"]\nsink = { kind = "postgresql", url = "postgresql://h", table = "t" }\n',
    b'[[bridge]]\nname = "e"\ntopics = ["#"]\nsink = { kind = "mqtt", url = "mqtt://h" }\n',
    b'[[bridge]]\nname = "f"\ntopics = ["#"]\nsink = { kind = "files", directory = "/x" }\n',
    (
        b"[access]\nanonymous = true\n"
        b'[[access.rules]]\npermission = "deny"\ntopics = ["a"]\naction = "publish"\nuser = "u"\n'
    ),
)
_TOKENS = (
    *tuple(
        text.encode()
        for text in (
            "[",
            "]",
            "[[",
            "]]",
            " = ",
            '"',
            "'",
            "''",
            '"""',
            "{",
            "}",
            "true",
            "inf",
            "nan",
            "-1",
            "1e9",
            "0x10",
            "1979-05-27T07:32:00Z",
            "99999999999999999999",
            "[" * 1200,
            "{a=" * 600,
            "9" * 4400,
            "0x" + "f" * 3700,
            "max_connections" + ".a" * 1100 + " = 1",
            '"1 GiB"',
            '"\\ud800"',
            "\\uD800",
            "# ",
        )
    ),
    b"\xff",
    b"\x00",
    b"\xc3",
)

TARGETS = (
    Target(
        "server_settings",
        run_server_settings,
        lambda: [*_SERVER, *_sections("journal.toml"), _uncommented("journal.toml")[:4000]],
        tokens=_TOKENS,
        max_input_bytes=6000,
        is_slow=True,
    ),
    Target(
        "broker_settings",
        run_broker_settings,
        lambda: [*_BROKER, b"".join(_BROKER), *_sections("broker.toml"), _uncommented("broker.toml")[:4000]],
        tokens=_TOKENS,
        max_input_bytes=6000,
        is_slow=True,
    ),
)
