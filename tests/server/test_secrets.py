"""A server as a process with TLS and users: commands reach it, SIGHUP changes who may, and no secret shows anywhere."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from broker_adapter.cache_queue.cli.commands import COMMANDS as QUEUE_COMMANDS
from journal.access.users import Cost, PasswordHash, write_user
from tests.command_line.test_programs import BROKER, JOURNAL, PROGRAMS, Program
from tests.patience import PATIENCE_S
from tests.server.people import AUTHORITY, EXPIRED_TOKEN, PASSWORD, TOKEN, write_people, write_server_certificate

CONF: Final = Path(__file__).parents[2] / "conf"
_COMMAND = [sys.executable, "-m", "journal.cli.main"]


class Process:
    """A running `journal serve`."""

    def __init__(self, path: Path, config: str) -> None:
        self._log = (path / "log").open("w+")
        (path / "journal.toml").write_text(config)
        self.process = subprocess.Popen(
            [*_COMMAND, "serve", "--data", str(path / "data"), "--config", str(path / "journal.toml")],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert ready.startswith("ready"), self.log
        self.address = next(word for word in ready.split() if word.startswith("tcp=")).removeprefix("tcp=")

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text()

    def close(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()

    def reload(self, *, expect: str) -> None:
        """Send SIGHUP and wait until the server says what came of it."""
        before = self.log.count(expect)
        self.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + PATIENCE_S
        while self.log.count(expect) == before:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def command_lines(self) -> str:
        """What every user of the machine sees of the server and of this process's other children."""
        pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
        found = []
        for pid in pids:
            try:
                found.append(Path(f"/proc/{pid}/cmdline").read_text(errors="replace"))
            except OSError:
                continue  # It ended meanwhile.
        return "\n".join(found)


ALLOWED = '[[access.rules]]\npermission = "allow"\ntopics = "#"\n'
"""All users may do everything with ordinary topics."""


@contextmanager
def served(path: Path, settings: dict[str, object], tcp: str = "127.0.0.1:0") -> Iterator[Process]:
    sections: dict[str, list[str]] = {"listen": [f'tcp = "{tcp}"', 'websocket = ""', 'http = ""']}
    for name, value in settings.items():
        section, _, key = name.partition("__")
        sections.setdefault(section, []).append(f'{key} = "{value}"')
    text = "\n".join(f"[{section}]\n" + "\n".join(lines) for section, lines in sections.items())
    server = Process(path, f"{text}\n{ALLOWED}")
    try:
        yield server
    finally:
        server.process.send_signal(signal.SIGTERM)
        status = server.process.wait(PATIENCE_S)
        log = server.log
        server.close()
        assert status == 0, log


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def journal(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_COMMAND, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.slow("starts servers and commands")
def test_commands_reach_a_server_with_tls_and_users_and_no_secret_shows(tmp_path: Path) -> None:
    settings = {**write_people(tmp_path), **write_server_certificate(tmp_path)}
    secret, ca = tmp_path / "secret", tmp_path / "trusted.pem"
    secret.write_text(PASSWORD)
    ca.write_bytes(AUTHORITY.cert_pem.bytes())
    with served(tmp_path, settings) as server:
        url = f"journals://anna@{server.address}?ca_file={ca}"
        with_file = f"{url}&password_file={secret}"
        assert journal("shard", "create", "x", "--server", with_file).returncode == 0
        assert journal("shard", "list", JOURNAL_SERVER=url, JOURNAL_PASSWORD=PASSWORD).returncode == 0
        by_token = f"journals://{server.address}?ca_file={ca}"
        assert journal("shard", "show", "x", "--server", by_token, JOURNAL_TOKEN=TOKEN).returncode == 0
        told = [
            journal("shard", "list", "--server", url, JOURNAL_PASSWORD="guess-of-eve"),
            journal("shard", "list", "--server", by_token, JOURNAL_TOKEN=EXPIRED_TOKEN),
            journal("shard", "list", "--server", by_token, JOURNAL_TOKEN=""),
            journal("shard", "list", "--server", f"journals://anna@{server.address}", JOURNAL_PASSWORD=PASSWORD),
            journal("shard", "list", "--server", f"anna@{server.address}", JOURNAL_PASSWORD=PASSWORD),
            journal("shard", "list", "--debug", "--server", url, JOURNAL_PASSWORD="guess-of-eve"),
        ]
        for one, expected in zip(
            told,
            [
                "wrong user name",
                "expired at 2001",
                "no credentials",
                "is not trusted",
                "connect with journals://",
                "wrong user name",
            ],
            strict=True,
        ):
            assert one.returncode != 0
            assert expected in one.stderr
        everything = server.log + server.command_lines() + "".join(one.stdout + one.stderr for one in told)
        for word in (PASSWORD, TOKEN, EXPIRED_TOKEN, "guess-of-eve"):
            assert word not in everything
        digests = [line.partition(":")[2] for name in ("users", "tokens") for line in lines_of(tmp_path / name)]
        assert not any(digest.strip() in everything for digest in digests)


QUEUE: Final = Program(
    "journal", {f"queue {name}": told for name, told in QUEUE_COMMANDS.commands.items()}, JOURNAL.run
)
EVERY_COMMAND: Final = [(each, command) for each in (*PROGRAMS, QUEUE) for command in each.commands]
SECRET: Final = re.compile(r"pass(word|wd|phrase)|secret|token|credential")


@pytest.mark.parametrize(("program", "command"), EVERY_COMMAND, ids=lambda each: getattr(each, "name", each))
def test_no_option_takes_a_secret(program: Program, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments are visible to all users of the machine; a file, stdin or the environment is not."""
    assert program.run([*command.split(), "--help"]) == 0
    told = capsys.readouterr().out
    assert f"{program.name} {command}" in told
    options = re.findall(r"--([a-z][a-z-]+)", told)
    assert [option for option in options if SECRET.search(option) and not option.endswith("-file")] == []


@pytest.mark.parametrize("name", ["journal.toml", "broker.toml"])
def test_no_setting_that_the_command_line_can_override_is_a_secret(name: str) -> None:
    sections = tomllib.loads((CONF / name).read_text())
    settings = [f"{section}.{key}" for section, keys in sections.items() if isinstance(keys, dict) for key in keys]
    assert len(settings) > 20
    assert [each for each in settings if SECRET.search(each) and not each.endswith("_file")] == []


@pytest.mark.parametrize("word", ["--server", "--set"])
def test_a_password_in_an_address_is_refused_and_not_repeated(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    address = "journals://anna:hush@127.0.0.1:1"
    if word == "--server":
        status = JOURNAL.run(["shard", "list", "--server", address])
    else:
        status = BROKER.run(["serve", "--anonymous", "--set", f"broker.store={address}"])
    told = "".join(capsys.readouterr())
    assert status != 0
    assert "password" in told
    assert "hush" not in told


@pytest.mark.slow("starts servers and commands")
def test_sighup_changes_who_may_and_what_is_wrong_changes_nothing(tmp_path: Path) -> None:
    settings = {**write_people(tmp_path), "access__audit_file": tmp_path / "audit"}
    with served(tmp_path, settings) as server:

        def may(name: str, password: str) -> bool:
            done = journal("shard", "list", "--server", f"{name}@{server.address}", JOURNAL_PASSWORD=password)
            return done.returncode == 0

        users = tmp_path / "users"
        assert may("anna", PASSWORD)
        kept = users.read_text()
        users.write_text(kept + "no line at all\n")
        server.reload(expect="everything stays as it was")
        assert may("anna", PASSWORD)
        users.write_text(kept)
        write_user(str(users), "anna", None)
        write_user(str(users), "carl", PasswordHash.of(b"new", Cost(2, 1, 1)))
        server.reload(expect="reloaded")
        assert not may("anna", PASSWORD)
        assert may("carl", "new")
        config = tmp_path / "journal.toml"
        config.write_text(config.read_text().replace(ALLOWED, ALLOWED.replace("allow", "deny")))
        server.reload(expect="reloaded")
        assert not may("carl", "new")
        lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
        reloads = [line["outcome"] == "ok" for line in lines if line["act"] == "reload"]
        assert reloads == [False, True, True]


@pytest.mark.slow("starts a server")
def test_what_is_open_is_told_again_at_sighup_where_it_has_changed(tmp_path: Path) -> None:
    with served(tmp_path, write_people(tmp_path)) as server:
        assert "The rules are" not in server.log
        config = tmp_path / "journal.toml"
        config.write_text(config.read_text() + ALLOWED.replace("#", "open/#"))
        more = "The rules are: every client everything on #; every client everything on open/#."
        server.reload(expect=more)
        server.reload(expect="reloaded")
        # The listening addresses change only with a restart.
        config.write_text(config.read_text().replace(ALLOWED, "").replace("127.0.0.1:0", "0.0.0.0:0"))
        server.reload(expect="The rules are: every client everything on open/#.")
        assert server.log.count(more) == 1
        assert "Clients on other machines can connect" not in server.log


@pytest.mark.slow("starts servers and commands")
def test_sighup_does_not_remove_authentication_while_other_machines_can_connect(tmp_path: Path) -> None:
    """The new settings are fine for the next start, which would listen elsewhere."""
    with served(tmp_path, write_people(tmp_path), tcp="0.0.0.0:0") as server:
        config = tmp_path / "journal.toml"
        config.write_text('[listen]\ntcp = "127.0.0.1:0"\nwebsocket = ""\nhttp = ""\n')
        server.reload(expect="everything stays as it was")
        assert "can be reached by other machines" in server.log
        port = server.address.rpartition(":")[2]
        assert journal("shard", "list", "--server", f"127.0.0.1:{port}").returncode != 0


@pytest.mark.slow("starts servers and commands")
@pytest.mark.parametrize("arguments", [["--listen", "0.0.0.0:0"], ["--set", "listen.http=[::]:0"]])
def test_a_server_without_authentication_does_not_listen_beyond_the_loopback(
    tmp_path: Path, arguments: list[str]
) -> None:
    done = journal("serve", "--data", str(tmp_path / "data"), *arguments)
    assert done.returncode != 0
    assert "can be reached by other machines" in done.stderr
    assert not (tmp_path / "data").exists()
