"""Single settings on the command line: what a program's `--set` gives to its configuration."""

from __future__ import annotations

import pytest

from command_line.boundary import UsageError
from command_line.overrides import overrides_of
from journal.settings.server_file import load_config
from journal.settings.values import ConfigurationError


def test_a_setting_is_its_dotted_name_and_its_value() -> None:
    given = ("storage.journal_file_bytes=64 MiB", "limits.hello_timeout_s = 3", "listen.http=", "log.level=debug")
    switched = load_config(None, overrides_of(("conversion.enabled=false",), listed_by="x"))

    config = load_config(None, overrides_of(given, listed_by="x"))

    assert config.storage.journal_file_bytes == 64 << 20
    assert config.limits.hello_timeout_s == 3
    assert config.listen.http == ""
    assert config.log.level == "debug"
    assert config.conversion.enabled
    assert not switched.conversion.enabled


@pytest.mark.parametrize("given", ["log.level", "level=debug", ".level=debug", "log.=debug", ""])
def test_another_form_is_refused_with_an_example(given: str) -> None:
    with pytest.raises(UsageError, match=r"SECTION\.KEY=VALUE, for example --set log\.level=debug \(`x config"):
        overrides_of((given,), listed_by="x config --default")


def test_one_setting_has_one_value() -> None:
    with pytest.raises(UsageError, match=r"log\.level twice, as debug and as info"):
        overrides_of(("log.level=debug", "log.level=info"), listed_by="x")


def test_an_unknown_setting_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigurationError, match=r"override log\.levle: .*did you mean level\?"):
        load_config(None, overrides_of(("log.levle=debug",), listed_by="x"))
