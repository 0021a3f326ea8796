"""The configuration files and documents of an installation: printed by the programs, found where they are."""

from __future__ import annotations

from pathlib import Path

import pytest

import broker_adapter.mqtt.cli.main
import journal.cli.main
from broker_adapter.mqtt.config import BrokerConfig, load_broker_config
from command_line import shipped_files
from command_line.boundary import CommandError
from journal.settings.server import ServerConfig
from journal.settings.server_file import load_config

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Runs a command; a file of what it printed."""

    def run(program, *arguments: str) -> Path:
        assert program.run(arguments) == 0
        file = tmp_path / "printed"
        file.write_text(capsys.readouterr().out)
        return file

    return run


def test_the_printed_default_file_of_the_server_is_commented_and_parses_to_the_defaults(printed) -> None:
    file = printed(journal.cli.main, "config", "--default")
    assert load_config(file) == ServerConfig()
    assert file.read_text() == (REPOSITORY / "conf" / "journal.toml").read_text()


def test_the_printed_default_file_of_the_broker_is_commented_and_parses_to_the_defaults(printed) -> None:
    file = printed(broker_adapter.mqtt.cli.main, "config", "--default")
    assert load_broker_config(file) == BrokerConfig()
    assert file.read_text() == (REPOSITORY / "conf" / "broker.toml").read_text()


@pytest.mark.parametrize("program", [journal.cli.main, broker_adapter.mqtt.cli.main])
def test_config_without_default_says_what_to_type(program, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["config"]) == 2
    assert "config --default` prints every setting" in capsys.readouterr().err


@pytest.mark.parametrize("program", [journal.cli.main, broker_adapter.mqtt.cli.main])
def test_the_places_of_configuration_and_documents_are_printed(program, printed) -> None:
    assert printed(program, "paths").read_text() == f"conf  {REPOSITORY / 'conf'}\ndocs  {REPOSITORY / 'docs'}\n"
    assert printed(program, "paths", "docs").read_text() == f"{REPOSITORY / 'docs'}\n"


def test_copied_modules_alone_name_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_files, "__file__", str(tmp_path / "command_line" / "shipped_files.py"))
    monkeypatch.setattr(shipped_files, "_DISTRIBUTION", "no-such-distribution")
    with pytest.raises(CommandError, match=r"this installation has no conf/broker\.toml"):
        shipped_files.shipped_path("conf/broker.toml")
