"""The units in conf/: systemd understands them, little is open to what runs in them, and it can run in them.

systemd itself need not run here. What the sandbox lets through is compared with what the processes really ask the
kernel for, as `strace` sees it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from journal.protocol import Op, messages
from shards.model import ShardConfig
from tests.faults.processes import Client, running
from tests.patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
UNITS = ("journal.service", "journal-broker.service")
LARGEST_EXPOSURE = 2.0

needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed (Debian package systemd)"
)
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def settings(unit: str) -> list[tuple[str, str]]:
    lines = (REPOSITORY / "conf" / unit).read_text().splitlines()
    return [
        (name, value)
        for name, separator, value in (line.partition("=") for line in lines if not line.startswith("#"))
        if separator
    ]


@pytest.fixture(params=UNITS)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit whose program is here: systemd looks for it."""
    text = (REPOSITORY / "conf" / request.param).read_text()
    text, count = re.subn(r"^ExecStart=/opt/journal/bin/\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE)
    assert count == 1
    path = tmp_path / request.param
    path.write_text(text)
    return path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=30, check=False)


@needs_analyze
def test_systemd_understands_every_line(unit: Path) -> None:
    done = analyze("verify", "--man=no", str(unit))
    complaints = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, complaints) == (0, [])


@needs_analyze
def test_little_is_open_to_what_runs_in_it(unit: Path) -> None:
    done = analyze("security", "--offline=true", str(unit))
    found = re.search(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) < LARGEST_EXPOSURE


@pytest.mark.parametrize("name", UNITS)
def test_what_is_promised_is_set(name: str) -> None:
    found = dict(settings(name))
    for setting, value in {
        "ProtectSystem": "strict",
        "NoNewPrivileges": "yes",
        "PrivateTmp": "yes",
        "CapabilityBoundingSet": "",
        "ProtectHome": "yes",
        "MemoryMax": "80%",
        "TasksMax": "512",
        "StateDirectoryMode": "0700",
    }.items():
        assert found[setting] == value
    assert "SystemCallFilter" in found


@pytest.mark.parametrize("name", UNITS)
def test_the_program_of_a_unit_is_one_that_the_package_installs(name: str) -> None:
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    program, *arguments = dict(settings(name))["ExecStart"].split()
    assert Path(program).name in scripts
    for argument in arguments:
        if argument.startswith("/etc/journal/"):
            assert (REPOSITORY / "conf" / Path(argument).name).exists()


@pytest.mark.parametrize("name", UNITS)
def test_a_reload_sends_what_reads_the_settings_again(name: str) -> None:
    assert dict(settings(name))["ExecReload"] == "kill -HUP $MAINPID"


@pytest.mark.slow("starts the program several times")
def test_a_reload_does_not_end_a_server_that_has_nothing_to_read_again(tmp_path: Path) -> None:
    """A signal that is not taken ends a process, and the unit would be told to start it again."""
    with running(tmp_path / "data") as server:
        os.kill(server.pid, signal.SIGHUP)
        deadline = time.monotonic() + PATIENCE_S
        while "reloaded" not in server.log.read_text():
            assert server.process.poll() is None, server.log.read_text()
            assert time.monotonic() < deadline, server.log.read_text()
            time.sleep(0.02)
        with server.client() as client:
            use(client)
        server.process.terminate()
        assert server.process.wait(60) == 0


def members(group: str) -> set[str]:
    """Names of the system calls in a group of systemd's, with those of the groups in it."""
    found: set[str] = set()
    for line in analyze("syscall-filter", group).stdout.splitlines()[1:]:
        word = line.strip()
        if word.startswith("@"):
            found |= members(word)
        elif word and not word.startswith("#"):
            found.add(word)
    return found


def allowed(unit: str) -> set[str]:
    """System calls that a unit lets through; its filters are carried out one after the other, as systemd does."""
    found: set[str] = set()
    # Whatever the filter, these are let through: without them nothing could be started.
    found |= members("@default")
    for name, value in settings(unit):
        if name != "SystemCallFilter":
            continue
        names = {one for word in value.lstrip("~").split() for one in (members(word) if word[0] == "@" else {word})}
        found = found - names if value.startswith("~") else found | names
    return found


def test_the_filter_of_a_unit_is_read_as_systemd_reads_it() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian package systemd)")
    lets_through = allowed("journal.service")
    assert {"read", "fdatasync", "pwritev", "epoll_wait", "link", "execve", "setpriority"} <= lets_through
    assert not {"chroot", "mount", "reboot", "ptrace", "init_module", "setuid", "chown", "bpf"} & lets_through


def called(trace: Path) -> set[str]:
    return set(re.findall(r"^\d+ +(?:<\.\.\. )?([a-z_0-9]+)(?:\(| resumed)", trace.read_text(), re.MULTILINE))


@pytest.mark.slow("traces a server")
@needs_analyze
@needs_strace
@pytest.mark.timeout(180)
def test_the_server_asks_the_kernel_for_nothing_that_its_unit_refuses(tmp_path: Path) -> None:
    """Appends, reads, checkpoint, conversion by its worker process, a snapshot, HTTP, and an orderly stop."""
    trace = tmp_path / "trace"
    under = ("strace", "-f", "-qq", "-e", "signal=none", "-o", str(trace))
    with running(tmp_path / "data", "conversion.max_age_s=1", under=under) as server:
        with server.client() as client:
            use(client)
        assert server.http("/readyz")[0] == 200
        assert server.http("/metrics")[0] == 200
        # strace passes nothing on: the server itself is told.
        os.kill(server.pid, signal.SIGTERM)
        assert server.process.wait(60) == 0
    found = called(trace)
    assert {"fdatasync", "pwritev2", "execve", "accept4", "link", "setpriority"} <= found
    assert found <= allowed("journal.service"), sorted(found - allowed("journal.service"))
    text = trace.read_text()
    # MemoryDenyWriteExecute
    assert not re.findall(r"(?:mmap|shmat)\(.*PROT_WRITE\|PROT_EXEC|(?:mprotect|pkey_mprotect)\(.*PROT_EXEC", text)
    families = set(dict(settings("journal.service"))["RestrictAddressFamilies"].split())
    assert set(re.findall(r"socket(?:pair)?\((AF_\w+)", text)) <= families


def use(client: Client) -> None:
    handle = client.open("plant", ShardConfig())
    client.append(handle, *[b"value" * 1000] * 20)
    client.call(Op.ROLL, messages.RollRequest("plant", wait=True))
    client.append(handle, b"later")
    assert len(client.read(handle)) == 21
    client.call(Op.SNAPSHOT, messages.Empty())
