"""What is installed where: extras, locks, the image, and the programs that tests compare with."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
SETTINGS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
PEERS = (
    "mosquitto mosquitto-clients postgresql libpostgresql-jdbc-java redis-server chromium prometheus strace faketime"
)


def closure(extra: str) -> set[str]:
    """What an extra needs, with the extras that it includes."""
    needed: set[str] = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        if included := re.fullmatch(r"journal-engine\[([\w,]+)\]", requirement):
            needed.update(*(closure(name) for name in included[1].split(",")))
        else:
            needed.add(requirement)
    return needed


def locked(name: str) -> set[str]:
    """What a lock file pins, as ``name==version``."""
    return set(re.findall(r"^([\w.-]+==[\w.!+-]+)", (REPOSITORY / "requirements" / name).read_text(), re.MULTILINE))


def test_the_image_has_all_that_the_server_the_broker_and_every_sink_need() -> None:
    assert closure("broker") <= closure("server")
    assert "requirements/image.lock" in (REPOSITORY / "Dockerfile").read_text()
    pinned = {pin.partition("==")[0] for pin in locked("image.lock")}
    all_of = closure("server") | closure("sinks") | closure("logins")
    needed = {re.split(r"[\[><=~ ]", requirement)[0] for requirement in all_of}
    assert {"coredis", "httpx", "psycopg", "pyjwt"} <= needed <= pinned
    assert "psycopg-binary" in pinned, "there is no library of PostgreSQL in the image that it could use"


def test_what_is_tested_is_what_the_image_has() -> None:
    assert locked("server.lock") <= locked("image.lock") <= locked("dev.lock")


def test_a_broker_with_a_remote_store_needs_no_database_and_no_web_framework() -> None:
    unwanted = re.compile("rocksdict|pyarrow|starlette|hypercorn|prometheus")
    assert not list(filter(unwanted.match, closure("broker")))
    locked = re.findall(r"^([\w.-]+)==", (REPOSITORY / "requirements" / "broker.lock").read_text(), re.MULTILINE)
    assert "trio-websocket" in locked
    assert not list(filter(unwanted.match, locked))


@pytest.mark.parametrize("lock", sorted(path.name for path in (REPOSITORY / "requirements").glob("*.lock")))
def test_locks_have_hashes_and_no_addresses(lock: str) -> None:
    text = (REPOSITORY / "requirements" / lock).read_text()
    assert "://" not in text
    for name, rest in re.findall(r"^([\w.-]+)==((?:.*\\\n)*.*)", text, re.MULTILINE):
        assert "--hash=sha256:" in rest, name


def test_all_that_the_image_is_built_from_gets_to_the_builder() -> None:
    """The context of the build is what `.dockerignore` lets through, and a COPY of anything else fails."""
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    sources = {source.rstrip("/") for line in copied for source in line.split()}
    let_through = re.findall(r"^!([\w./*]+)$", (REPOSITORY / ".dockerignore").read_text(), re.MULTILINE)
    packages = set(SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert packages <= sources
    for source in sources:
        assert any(pattern == source or pattern.startswith(f"{source}/") for pattern in let_through), source


def install_peers(
    tmp_path: Path, *, installed: bool, root: bool, sudo: bool = False, works: bool = True
) -> tuple[str, list[str]]:
    """Run the script with programs that only note how they are called; what it said and what it called."""
    programs = tmp_path / "bin"
    programs.mkdir()
    calls = tmp_path / "calls"
    calls.touch()
    scripts = {
        "id": f"echo {0 if root else 1000}",
        "apt-get": f"echo apt-get $@ >> {calls}; exit {0 if works else 100}",
        "sudo": f'[ {int(sudo)} = 1 ] || exit 1; echo sudo >> {calls}; shift; "$@"',
    }
    archives = tmp_path / "java"
    archives.mkdir()
    if installed:
        (archives / "postgresql.jar").touch()
        scripts |= dict.fromkeys(
            ("mosquitto", "mosquitto_pub", "initdb", "redis-server", "chromium", "promtool", "strace", "faketime"), ""
        )
    for name, body in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    for name in ("bash", "env", "true"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    # The script adds the directories of system programs itself, where those of this machine may lie.
    text, lines = re.subn("^PATH=.*", "", (REPOSITORY / "scripts" / "install-peers").read_text(), flags=re.MULTILINE)
    assert lines == 1
    environment = {"PATH": str(programs), "JAVA_ARCHIVES": str(archives)}
    done = subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr, calls.read_text().splitlines()


def test_nothing_is_installed_where_all_is_there(tmp_path: Path) -> None:
    assert install_peers(tmp_path, installed=True, root=True) == ("", [])


def test_root_installs_what_is_missing(tmp_path: Path) -> None:
    said, called = install_peers(tmp_path, installed=False, root=True)
    assert said == f"peers: installing {PEERS}\n"
    assert called == [
        "apt-get update -qq",
        f"apt-get install -qq -y --no-install-recommends {PEERS}",
    ]


def test_others_install_by_sudo_if_it_does_not_ask(tmp_path: Path) -> None:
    _, called = install_peers(tmp_path, installed=False, root=False, sudo=True)
    assert [call for call in called if call != "sudo"] == [
        "apt-get update -qq",
        f"apt-get install -qq -y --no-install-recommends {PEERS}",
    ]
    assert called.count("sudo") == 3


@pytest.mark.parametrize("root", [True, False])
def test_where_nothing_can_be_installed_it_says_what_is_skipped_and_ends_well(tmp_path: Path, root: bool) -> None:
    said, called = install_peers(tmp_path, installed=False, root=root, works=False)
    assert "tests that need them are skipped" in said
    assert PEERS in said
    assert len(called) == int(root)
