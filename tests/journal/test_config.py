from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest

from journal.settings.access import AccessRuleTable, QuotaTable, RoleTable, RuleAction
from journal.settings.logins import LoginTable, LoginType
from journal.settings.server import ListenConfig, ServerConfig, StorageConfig
from journal.settings.server_file import RENAMED, SECTIONS, TABLES, load_config
from journal.settings.values import ConfigurationError, LogFormat, Permission, allowed
from shards.model import Mode

SHIPPED = Path(__file__).parents[2] / "conf" / "journal.toml"


def load(tmp_path: Path, text: str, **overrides: object) -> ServerConfig:
    path = tmp_path / "journal.toml"
    path.write_text(text)
    return load_config(path, overrides)


def problem(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    return str(caught.value)


def test_the_shipped_file_names_every_setting_at_its_default() -> None:
    assert load_config(SHIPPED) == ServerConfig() == load_config(None)
    shipped = tomllib.loads(SHIPPED.read_text())
    assert {section: list(settings) for section, settings in shipped.items()} == {
        section: list(attributes) for section, attributes in SECTIONS.items()
    }


def with_tables() -> str:
    """The shipped file with the lists of tables that it shows as comments."""
    return re.sub(r"^#(\[|\w+ = )", r"\1", SHIPPED.read_text(), flags=re.MULTILINE)


def test_the_shipped_file_shows_every_list_of_tables_as_a_comment(tmp_path: Path) -> None:
    shown = tomllib.loads(with_tables())
    assert [
        *(list(shown["access"][name][0]) for name in ("logins", "roles", "rules")),
        list(shown["quotas"][0]),
    ] == [
        list(TABLES["access.logins"]),
        list(TABLES["access.roles"]),
        list(TABLES["access.rules"]),
        list(TABLES["quotas"]),
    ]
    authority = {"tls.certificate_file": "c", "tls.key_file": "k", "tls.client_ca_file": "ca"}
    config = load(tmp_path, with_tables(), **authority)
    actions = (RuleAction.READ, RuleAction.SUBSCRIBE)
    topics, groups, cursors = ("users/%u/#", "public/#"), ("billing", "users/%u/#"), ("reports/#",)
    assert config.access.rules == (
        AccessRuleTable(Permission.ALLOW, topics, actions, groups=groups, cursors=cursors, role="operators"),
    )
    assert config.access.logins == (LoginTable(LoginType.CERTIFICATE, ("device-17",)),)
    assert config.access.roles == (RoleTable("operators", ("anna", "bob")),)
    assert config.quotas == (
        QuotaTable("", ("users/%u/#",), 10, 1000, 10 << 20, 100 << 30, 1000, 10000, 512 << 20, 500, 1000),
    )


SETTINGS = [
    (section, key, attribute)
    for section, settings in [*SECTIONS.items(), *TABLES.items()]
    for key, attribute in settings.items()
]


@pytest.mark.parametrize(("section", "key", "attribute"), SETTINGS)
def test_the_comment_of_each_shipped_setting_names_its_default_unit_and_bounds(
    section: str, key: str, attribute: attrs.Attribute[Any]
) -> None:
    heading = f"#[[{section}]]" if section in TABLES else f"[{section}]"
    lines = re.split(r"\n#?\[", SHIPPED.read_text().split(f"\n{heading}\n")[1])[0].splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.lstrip("#").startswith(f"{key} = "))
    value = lines[at].partition(" = ")[2]
    comment: list[str] = []
    while lines[at - 1].startswith("# "):
        at -= 1
        comment.insert(0, lines[at].removeprefix("# "))
    told = " ".join(comment)
    assert f"Allowed: {allowed(attribute)}." in told
    assert "Default: " in told or (attribute.default is attrs.NOTHING and "No default." in told)
    if section in SECTIONS:
        assert f"Default: {value}." in told
    if "unit" in attribute.metadata:
        assert f"Unit: {attribute.metadata['unit']}." in told
    assert len(comment) >= 2, "it says what the setting is for, too"


def test_there_are_at_most_forty_settings_each_within_its_bounds() -> None:
    of_access = {key for section in ("tls", "access") for key in SECTIONS[section]}
    assert len(of_access) <= 8, "those in the open need these, too"
    attributes = [attribute for settings in SECTIONS.values() for attribute in settings.values()]
    assert len(attributes) - len(of_access) <= 40
    for _, _, attribute in SETTINGS:
        if "bounds" in attribute.metadata:
            low, high = attribute.metadata["bounds"]
            assert low <= attribute.default <= high
        if attribute.type is int or attribute.name.endswith("_bytes"):
            assert attribute.metadata["unit"], attribute.name


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        '[listen]\nhttp = ""\n[storage]\nsegment_bytes = "1.5 GiB"\npage_cache_bytes = 0\n'
        '[shards]\ndefault_mode = "memory"\n[log]\nformat = "json"\n',
    )
    assert config.listen == ListenConfig(http="")
    assert config.storage == StorageConfig(segment_bytes=3 << 29, page_cache_bytes=0)
    assert config.shards.default_mode is Mode.MEMORY
    assert config.log.format is LogFormat.JSON


def test_an_override_wins_over_the_file(tmp_path: Path) -> None:
    overrides = {"listen.tcp": "[::1]:0", "limits.max_wait_ms": 5}
    config = load(tmp_path, "[limits]\nmax_wait_ms = 6\nhello_timeout_s = 7\n", **overrides)
    assert (config.listen.tcp, config.limits.max_wait_ms, config.limits.hello_timeout_s) == ("[::1]:0", 5, 7)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[storage]\nsegment_byte = 1", "[storage] segment_byte = 1 is unknown; did you mean segment_bytes?"),
        ("[log]\nzebra = 1", "[log] zebra = 1 is unknown; known: format, level"),
        ("[storge]\nreceive_buffers = 20", "[storge] is unknown; did you mean storage?"),
        (
            "zebra = 20",
            "zebra is unknown; known: access, cluster, conversion, limits, listen, log, quotas, shards, storage, tls",
        ),
        ("receive_buffers = 20", "receive_buffers is unknown here; it belongs to [storage]"),
        ("[log]\ndefault_mode = 'file'", "[log] default_mode = 'file' is unknown here; it belongs to [shards]"),
        ("[sealing]\nenabled = false", "[sealing] has a new name: [conversion]"),
        ("storage = 20", "storage = 20 must be a section: [storage]"),
        ("[storage]\nreceive_buffers = 0", "[storage] receive_buffers = 0 is out of bounds; allowed: 1 to 100000"),
        (
            "[storage]\nreceive_buffers = true",
            "[storage] receive_buffers = true is not a whole number; allowed: 1 to 100000",
        ),
        (
            "[storage]\nreceive_buffers = 20.5",
            "[storage] receive_buffers = 20.5 is not a whole number; allowed: 1 to 100000",
        ),
        (
            '[storage]\nreceive_buffers = "20"',
            "[storage] receive_buffers = '20' is not a whole number; allowed: 1 to 100000",
        ),
        (
            '[storage]\nsegment_bytes = "1 KiB"',
            "[storage] segment_bytes = '1 KiB' is out of bounds; allowed: 64 KiB to 64 GiB",
        ),
        (
            '[storage]\nsegment_bytes = "1 MB"',
            "[storage] segment_bytes = '1 MB' is not a size; write a whole number of bytes or a text like \"256 MiB\"",
        ),
        ("[listen]\ntcp = 7420", '[listen] tcp = 7420 is not a text; allowed: "host:port", or "" for off'),
        ('[listen]\ntcp = "a:b"', '[listen] tcp = \'a:b\' is not an address; allowed: "host:port", or "" for off'),
        (
            '[shards]\ndefault_mode = "disk"',
            '[shards] default_mode = \'disk\' is not one of the choices; allowed: "memory" or "file"',
        ),
        ("[conversion]\nenabled = 1", "[conversion] enabled = 1 is neither true nor false; allowed: true or false"),
        ("[log]\nlevel = 3", '[log] level = 3 is not one of the choices; allowed: "debug" or "info" or'),
        (
            '[storage]\njournal_budget_bytes = "200 MiB"',
            (
                "storage.journal_budget_bytes = 200 MiB is too small, as one file is written while one is recycled: "
                "with storage.journal_file_bytes = 128 MiB it must be at least 256 MiB; raise it or lower the other"
            ),
        ),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_file_key_value_and_what_is_allowed(
    tmp_path: Path, text: str, expected: str
) -> None:
    message = problem(tmp_path, text)
    assert message.startswith(f"{tmp_path / 'journal.toml'}: {expected}")
    assert "\n" not in message


def test_every_wrong_setting_gets_a_line(tmp_path: Path) -> None:
    message = problem(
        tmp_path, "x = 1\n[log]\nlevl = 'info'\nformat = 'xml'\n[nowhere]\na = 1\n[storage]\nreceive_buffers = ''"
    )
    assert len(message.splitlines()) == 5


def test_a_wrong_override_is_named_as_one(tmp_path: Path) -> None:
    for name, value, expected in (
        ("log.level", "loud", "override log.level: [log] level = 'loud' is not one of the choices"),
        ("log.levle", "info", "override log.levle: [log] levle = 'info' is unknown; did you mean level?"),
        ("lag.level", "info", "override lag.level: [lag] is unknown; did you mean log?"),
        ("sealing.max_age_s", 60, "override sealing.max_age_s: [sealing] has a new name: [conversion]"),
        ("level", "info", "override level: level is not a dotted name"),
    ):
        with pytest.raises(ConfigurationError, match=r"^override") as caught:
            load(tmp_path, "", **{name: value})
        assert str(caught.value).startswith(expected)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{tmp_path}/none cannot be read: No such file"):
        load_config(tmp_path / "none")
    assert "is not valid TOML: " in problem(tmp_path, "[storage\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="is not valid TOML"):
        load_config(tmp_path / "binary")


def test_a_broker_does_not_need_the_settings() -> None:
    """cattrs belongs to the server's installation; the shared packages must import without it."""
    assert not any("cattrs" in path.read_text() for path in (SHIPPED.parents[1] / "shards").glob("*.py"))


ROLE = '[[access.roles]]\nname = "x"\nprincipals = ["a"]\n'
RULE = '[[access.rules]]\npermission = "allow"\ntopics = "a"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('listen.tcp = "0.0.0.0:7420"', "listen.*tcp.*can be reached by other machines.*access.allow_insecure = true"),
        ('listen.http = "[::]:7422"', "http.*can be reached by other machines"),
        ('listen.websocket = "store.example:7421"', "websocket.*can be reached by other machines"),
        ('access.anonymous = true\nlisten.tcp = "10.0.0.1:7420"', "can be reached by other machines"),
        ('tls.certificate_file = "x"', "belong together"),
        ('tls.client_ca_file = "x"', "needs certificate_file"),
        ('[[access.rules]]\npermission = "allow"\ntopics = "a/%c"', '"%c"'),
        ('[[access.rules]]\npermission = "allow"\ntopics = "a"\nactions = ["write"]', "not an action"),
        ('[[access.rules]]\npermission = "allow"', "number 1 is about nothing; give topics, groups or cursors"),
        ('[[access.rules]]\npermission = "allow"\ngroups = "%c/x"', '"%c" in its groups'),
        (
            '[[access.rules]]\npermission = "allow"\ncursors = "x"\nactions = ["append"]',
            'number 1 names groups or cursors without the action "read"',
        ),
        ('[[access.roles]]\nname = "x"\nprincipals = ["a"]', "number 1 gives no rights, since no rule is for role 'x'"),
        (f'{ROLE}{ROLE}{RULE}role = "x"', r"roles\]\] number 2 is called 'x' again"),
        (f'{ROLE}{RULE}role = "y"', r"number 1 is for role 'y', which is not in \[\[access.roles\]\] \('x'\)"),
        (f'{ROLE}{RULE}role = "x"\nprincipal = "a"', "make two rules of it"),
        ('[[access.roles]]\nname = "x"\nprincipals = []', "names no principal"),
        ("[[quotas]]\nshards = 1", "which shards count"),
        ("[[quotas]]\n[[quotas]]", "again"),
        (
            '[[quotas]]\nprincipal = "*"\nmemory_bytes = 1',
            "memory_bytes of all principals.*storage.memory_budget_bytes",
        ),
    ],
)
def test_settings_that_would_allow_everybody_or_make_no_sense_are_refused(tmp_path: Path, text: str, told: str) -> None:
    assert re.search(told, problem(tmp_path, text), re.DOTALL)


@pytest.mark.parametrize(
    "text",
    [
        'listen.tcp = "localhost:1"\nlisten.http = "[::1]:2"\nlisten.websocket = "127.8.0.1:3"',
        'listen.tcp = "0.0.0.0:7420"\naccess.allow_insecure = true',
        'listen.tcp = "0.0.0.0:7420"\naccess.users_file = "users"',
        'listen.tcp = "0.0.0.0:7420"\naccess.tokens_file = "tokens"',
        'listen.tcp = "0.0.0.0:7420"\ntls.certificate_file = "c"\ntls.key_file = "k"\ntls.client_ca_file = "a"',
    ],
)
def test_a_server_with_authentication_or_allow_insecure_listens_beyond_the_loopback(tmp_path: Path, text: str) -> None:
    load(tmp_path, text)


def test_new_names_exist_and_old_ones_do_not() -> None:
    names = {*SECTIONS, *TABLES, *(f"{section}.{key}" for section, keys in SECTIONS.items() for key in keys)}
    assert set(RENAMED.values()) <= names
    assert not set(RENAMED) & names
