"""The commands that need no store: `passwd`, `rules`, `check`, and the program itself."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from broker_adapter.mqtt.cli.main import explain, run
from broker_adapter.mqtt.config import load_broker_config
from broker_adapter.mqtt.rules.rule_set import RuleSet
from broker_adapter.mqtt.session.errors import BrokerReplacedError
from command_line.boundary import describe
from journal.access.users import read_users
from tests.mqtt.edges.listening import write_certificate

CONFIG = """
[access]
default = "deny"
[[access.rules]]
permission = "allow"
topics = ["users/%u/#"]
[[access.rules]]
permission = "allow"
topics = ["plant/#"]
action = "publish"
client = "gateway"
[[storage]]
topics = "plant/+/temperature"
qos = [0, 1]
storage = "memory"
offline = false
[[storage]]
topics = "gone/#"
storage = "none"
[[mapping]]
topics = "meters/#"
prefix = "$meters"
shards = 1
[[bridge]]
name = "warehouse"
topics = ["meters/+", "plant/#"]
sink = { type = "http", url = "http://127.0.0.1:8080/records" }
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "broker.toml"
    path.write_text(CONFIG)
    return str(path)


def test_help_and_version_import_no_part_of_a_broker() -> None:
    program = (
        "import sys; from broker_adapter.mqtt.cli.main import run; run(['--help']); run(['--version']); "
        "print(*[name for name in ('structlog', 'cattrs', 'broker_adapter.mqtt.config') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert told.splitlines()[-1] == ""


def test_a_broker_whose_id_another_took_ends_with_one_line() -> None:
    error = BrokerReplacedError("another process runs as broker 'a'")
    assert describe(error, explain) == "another process runs as broker 'a'"
    assert describe(ValueError("a bug"), explain).startswith("internal error: ValueError")


def give(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_a_password_comes_from_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "users")
    for line, told in ((b"one two\r\nrest", "anna: added\n"), ("ü\n".encode(), "anna: password changed\n")):
        give(monkeypatch, line)
        assert run(["passwd", path, "anna"]) == 0
        assert capsys.readouterr().out == told
        assert read_users(path).check("anna", line.splitlines()[0])
    assert run(["passwd", path, "anna", "--remove"]) == 0
    assert capsys.readouterr().out == "anna: removed\n"
    assert run(["passwd", path, "anna", "--remove"]) == 1
    assert capsys.readouterr().err == f"journal-broker: {path} has no user 'anna'\n"


def test_no_password_is_no_empty_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    give(monkeypatch, b"\n")
    assert run(["passwd", str(tmp_path / "users"), "anna"]) == 2
    assert "no password on stdin" in capsys.readouterr().err
    assert not (tmp_path / "users").exists()


@pytest.mark.parametrize(("second", "status"), [("secret", 0), ("secrte", 1)])
def test_a_terminal_is_asked_twice_and_shows_nothing(tmp_path: Path, second: str, status: int) -> None:
    """As docs/mqtt.md shows it."""
    path = tmp_path / "users"
    command = [sys.executable, "-m", "broker_adapter.mqtt.cli.main", "passwd", str(path), "anna"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, command)
    said = b""
    for prompt, answer in ((b"password of anna: ", "secret"), (b"once more: ", second)):
        while not said.endswith(prompt):
            said += os.read(terminal, 1024)
        os.write(terminal, f"{answer}\n".encode())
    try:
        while data := os.read(terminal, 1024):
            said += data
    except OSError:
        pass  # how a terminal says that its program has ended
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == status
    assert b"secret" not in said
    assert path.exists() == (status == 0)
    if status == 0:
        assert read_users(str(path)).check("anna", b"secret")
    else:
        assert b"the two differ; nothing was changed" in said


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("a", {"storage": ["none", "file", "file"], "shard": "a", "mode": "file", "offline": True}),
        (
            "plant/1/temperature",
            {"storage": ["memory", "memory", "file"], "shard": "plant/1/temperature", "mode": "file", "offline": False},
        ),
        ("gone/x", {"storage": ["none"] * 3, "shard": "none of its own", "mode": "none", "offline": False}),
        ("meters/7", {"storage": ["none", "file", "file"], "shard": "$meters/0", "mode": "file", "offline": True}),
        ("$delayed/60/a", {"topic": "a", "shard": "a"}),
        ("users/anna/x", {"publish": "allowed", "subscribe": "allowed"}),
        ("plant/1", {"publish": "allowed", "subscribe": "denied"}),
        ("else", {"publish": "denied", "subscribe": "denied", "bridges": []}),
        ("meters/1", {"bridges": ["warehouse"]}),
    ],
)
def test_what_becomes_of_a_topic(
    config: str, topic: str, expected: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["rules", topic, "--config", config, "--user", "anna", "--client", "gateway", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {key: told[key] for key in expected} == expected


def test_what_becomes_of_topics_as_a_table(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "gone/x", "meters/7", "--config", config]) == 0
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    assert [cell.strip() for cell in lines[-2] if cell.strip()] == [
        "gone/x", "none", "none", "none", "none of its own", "none", "misses it",
        "denied (default)", "denied (default)", "none",
    ]  # fmt: skip
    assert [cell.strip() for cell in lines[-1] if cell.strip()][4:7] == ["$meters/0", "file", "gets it"]
    assert lines[-1][-1].strip() == "warehouse"


def test_without_a_configuration_the_rules_of_the_store_tell_what_becomes_of_a_topic(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The defaults were shown: no bridges, although the brokers' store had one for the topic."""
    asked: list[str] = []

    def ask(store: str, question: object, option: str) -> RuleSet:
        asked.append(store)
        return RuleSet.of(load_broker_config(config, {}))

    monkeypatch.setattr("broker_adapter.cache_queue.cli.connection.ask", ask)
    assert run(["rules", "meters/1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["bridges"] == ["warehouse"]
    assert (told["publish"], told["subscribe"]) == ("not known", "not known")
    assert asked == ["journal://127.0.0.1:7420"]
    assert run(["rules", "meters/1", "--set", "access.anonymous=true", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bridges"] == []
    assert len(asked) == 1


def test_a_configuration_is_checked_for_a_broker_that_accepts_all_clients(capsys: pytest.CaptureFixture[str]) -> None:
    """`journal-broker --anonymous` starts with it, and the check had no such option."""
    assert run(["check"]) == 1
    assert "no client can connect" in capsys.readouterr().out
    assert run(["check", "--anonymous"]) == 0
    assert "the defaults: a broker can start with it; 0 access rules, " in capsys.readouterr().out


def test_all_mistakes_are_reported_on_one_line_with_their_places(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Problems ran into each other without anything between them, and a kind of sink was wrong of no bridge."""
    path = tmp_path / "broker.toml"
    path.write_text('[[bridge]]\nname = "r"\ntopics = ["a/#"]\nsink = { type = "filez" }\n')
    assert run(["check", "--config", str(path)]) == 1
    assert f"{path}: [[bridge]] r: there is no kind of sink 'filez'; installed are " in capsys.readouterr().err
    path.write_text("[access]\nanonymous = 1\n[limits]\nnope = 1\n")
    assert run(["check", "--config", str(path)]) == 1
    told = capsys.readouterr().err
    assert f"; allowed: true or false; {path}: [limits] nope = 1 is unknown" in told
    assert told.count("\n") == 1


def test_a_configuration_that_a_broker_can_start_with(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    users = str(tmp_path / "users")
    give(monkeypatch, b"secret\n")
    assert run(["passwd", users, "anna"]) == 0
    files = write_certificate(str(tmp_path))
    with open(config, "a") as file:
        file.write(f'[tls]\ncertificate_file = "{files.certificate}"\nkey_file = "{files.key}"\n')
    capsys.readouterr()
    assert run(["check", "--config", config, "--set", f"access.users_file={users}"]) == 0
    assert capsys.readouterr().out == (
        f"{config}: a broker can start with it; 2 access rules, 2 storage rules, 1 mapping rule, 1 bridge, 1 user\n"
        f"Only clients on this machine can connect, to mqtt = 127.0.0.1:1883. Accepted are 1 user of {users}. "
        "What they may publish and subscribe to is denied where 2 rules do not decide.\n"
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            ["broker.store=redis:"],
            "override broker.store: [broker] store = 'redis:' is not a store URL; allowed: a URL",
        ),
        (["access.users_file=/none"], "/none cannot be read: No such file or directory; `journal passwd /none"),
        (
            ["tls.certificate_file=/none", "tls.key_file=/none"],
            "tls.certificate_file = '/none' and tls.key_file = '/none': /none cannot be read: No such file",
        ),
    ],
)
def test_what_is_wrong_with_a_configuration_is_one_line(
    settings: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", *(word for setting in settings for word in ("--set", setting))]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"journal-broker: {expected}")
    assert error.count("\n") == 1


def test_a_configuration_that_accepts_no_client_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check"]) == 1
    assert "no client can connect: no users_file is named" in capsys.readouterr().out
    (tmp_path / "users").touch()
    assert run(["check", "--set", f"access.users_file={tmp_path}/users"]) == 1
    assert "has no users; add one with `journal-broker passwd`" in capsys.readouterr().out
