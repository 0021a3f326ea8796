"""The broker's settings: the shipped file and the classes are the same, and errors help."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker_adapter.bridge.config import BridgeTable
from broker_adapter.mqtt.config import (
    SECTIONS,
    TABLES,
    AccessRuleTable,
    Action,
    BrokerConfig,
    LimitsSection,
    ListenSection,
    MappingTable,
    Permission,
    RoleTable,
    StorageTable,
    load_broker_config,
)
from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt.model.storage_rules import Storage
from journal.settings.logins import LoginTable, LoginType
from journal.settings.values import ConfigurationError, allowed, kind_of

SHIPPED = Path(__file__).parents[3] / "conf" / "broker.toml"


def with_tables() -> str:
    """The shipped file with the tables that it shows as comments."""
    return re.sub(r"^#(?=[\[a-z])", "", SHIPPED.read_text(), flags=re.MULTILINE)


def load(tmp_path: Path, text: str, **overrides: object) -> BrokerConfig:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    return load_broker_config(path, overrides)


def test_the_shipped_file_names_every_setting_at_its_default() -> None:
    assert load_broker_config(SHIPPED) == BrokerConfig() == load_broker_config(None)
    shipped = tomllib.loads(SHIPPED.read_text())
    assert {section: list(settings) for section, settings in shipped.items()} == {
        section: list(attributes) for section, attributes in SECTIONS.items()
    }


def test_the_shipped_file_shows_every_list_of_tables_as_a_comment(tmp_path: Path) -> None:
    shown = tomllib.loads(with_tables())
    (rule,), (login,), (role,) = (shown["access"][name] for name in ("rules", "logins", "roles"))
    others = {name: shown[name][0] for name in ("quotas", "storage", "mapping", "bridge")}
    found = {"access.logins": login, "access.roles": role, "access.rules": rule, **others}
    assert {name: list(settings) for name, settings in found.items()} == {
        name: list(attributes) for name, attributes in TABLES.items()
    }
    authority = {"tls.certificate_file": "c", "tls.key_file": "k", "tls.client_ca_file": "ca"}
    config = load(tmp_path, with_tables(), **authority)
    assert config.access.logins == (LoginTable(LoginType.CERTIFICATE, ("device-17",)),)
    assert config.access.roles == (RoleTable("operators", ("anna", "bert")),)
    topics = ("users/%u/#", "public/#")
    assert config.access.rules == (AccessRuleTable(Permission.ALLOW, topics, role="operators"),)
    assert config.storage == (StorageTable("plant/+/temperature", (0, 1), Storage.MEMORY, False),)
    assert config.mapping == (MappingTable("meters/#", "$meters", 16),)
    url = "http://127.0.0.1:8080/records"
    assert config.bridge == (BridgeTable("warehouse", ("plant/#",), {"type": "http", "url": url}),)


SETTINGS = [
    (section, key, attribute)
    for section, settings in [*SECTIONS.items(), *TABLES.items()]
    for key, attribute in settings.items()
]


@pytest.mark.parametrize(("section", "key", "attribute"), SETTINGS)
def test_the_comment_of_each_setting_names_its_default_unit_and_bounds(
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
    if section in SECTIONS:
        assert f"Default: {value}." in told
    elif attribute.default in (attrs.NOTHING, None):
        assert "No default." in told
    else:
        default = attribute.default
        if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
            default = default.factory()
        elif attribute.type is not None and (kind := kind_of(attribute.type)) is not None and kind.show is not str:
            default = kind.show(default)
        shown = list(default) if isinstance(default, tuple) else json.dumps(default)
        assert f"Default: {shown}." in told
    if "unit" in attribute.metadata:
        assert f"Unit: {attribute.metadata['unit']}." in told
    assert len(comment) >= 2, "it says what the setting is for, too"


def test_there_are_at_most_forty_settings_each_within_its_bounds() -> None:
    shared = [*TABLES["storage"], *TABLES["mapping"], *TABLES["bridge"]]
    assert len(TABLES["bridge"]) <= 25, "a bridge is a program of its own"
    assert len(shared) <= 35, "rules of the store, which are no settings of one broker"
    assert len(TABLES["quotas"]) <= 10, "limits of single users, as the server has them"
    assert len(TABLES["access.logins"]) <= 25, "settings of each kind of login, as the server has them"
    rights = [*TABLES["access.roles"], *TABLES["access.rules"]]
    assert len(rights) <= 8, "rights of single users and roles, as the server has them"
    of_users = [*TABLES["quotas"], *TABLES["access.logins"], *rights]
    assert len(SETTINGS) - len(shared) - len(of_users) <= 40
    for section, key, attribute in SETTINGS:
        if "bounds" in attribute.metadata and attribute.default is not attrs.NOTHING:
            low, high = attribute.metadata["bounds"]
            assert low <= attribute.default <= high, (section, key)
        if attribute.type is int or key.endswith("_bytes"):
            assert attribute.metadata["unit"], (section, key)


def test_a_broker_without_a_file_has_the_limits_that_a_file_shows() -> None:
    limits = attrs.asdict(Limits())
    for key, value in attrs.asdict(LimitsSection()).items():
        assert key == "max_connections" or limits[key] == value


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        [broker]
        id = 3
        store = "memory:"
        [listen]
        mqtt = ""
        websocket = "[::1]:8083"
        [[access.rules]]
        permission = "deny"
        topics = "secret/#"
        action = "subscribe"
        user = "anna"
        [[access.rules]]
        permission = "allow"
        topics = ["users/%u/+", "%c"]
        [[storage]]
        topics = "#"
        qos = 2
        storage = "none"
        [[storage]]
        topics = "a"
        offline = false
        [limits]
        max_packet_bytes = "1 MiB"
        """,
        **{"log.level": "debug"},
    )
    assert (config.broker.id, config.broker.store) == ("3", "memory:")
    assert config.listen == ListenSection(mqtt="", websocket="[::1]:8083")
    assert config.access.rules == (
        AccessRuleTable(Permission.DENY, ("secret/#",), Action.SUBSCRIBE, "anna"),
        AccessRuleTable(Permission.ALLOW, ("users/%u/+", "%c")),
    )
    assert config.storage == (StorageTable("#", (2,), Storage.NONE), StorageTable("a", offline=False))
    assert config.limits == LimitsSection(max_packet_bytes=1 << 20)
    assert config.log.level == "debug"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[broker]\nid = 'a b'", "[broker] id = 'a b' is not a broker id; allowed: up to 64 letters,"),
        ("[broker]\nid = true", "[broker] id = true is not a text; allowed: up to 64"),
        (
            "[broker]\nstore = 'redis://x'",
            "[broker] store = 'redis://x' is not a store URL; allowed: a URL that begins with",
        ),
        (
            "[broker]\nstore = 'journal://a:1,b:1?ca_file=ca&read=follower'",
            "[broker] store = 'journal://a:1,b:1?ca_file=ca&read=follower' asks for a server whose data may be old",
        ),
        ("[broker]\nstores = 'memory:'", "[broker] stores = 'memory:' is unknown; did you mean store?"),
        ("[listen]\nmqtt = ''", "[listen] names no address, so no client could connect"),
        ("[listen]\nmqtts = ':1'", "[listen] mqtts = ':1' is not an address; allowed"),
        ("[listen]\nmqtts = 'a:1'", "[listen] mqtts = 'a:1' needs [tls] certificate_file and key_file"),
        ("[tls]\nkey_file = 'x'", "[tls] certificate_file and key_file belong together; give both or neither"),
        ("[access]\nanonymous = 'yes'", "[access] anonymous = 'yes' is neither true nor false"),
        ("[access]\nrules = 3", "[access] rules = 3 must be a list of tables: [[access.rules]] before each"),
        (
            "[[access.rules]]\npermission = 'allow'",
            "[[access.rules]] number 1 has no topics; allowed: a list of topic filters, in which",
        ),
        (
            "[[access.rules]]\npermission = 'allow'\ntopics = ['a', 'b+/c']",
            "[[access.rules]] number 1: topics = ['a', 'b+/c'] is not a topic filter; allowed: a list",
        ),
        (
            "[[access.rules]]\npermission = 'allow'\ntopics = []",
            "[[access.rules]] number 1: topics = [] names no topic filter; allowed: a list",
        ),
        (
            "[[access.rules]]\npermission = 'maybe'\ntopics = 'a'",
            '[[access.rules]] number 1: permission = \'maybe\' is not one of the choices; allowed: "allow" or "deny"',
        ),
        (
            "[[storage]]\ntopics = 'a'\nstorage = 'file'\n[[storage]]\ntopics = 'a#'\nstorage = 'file'",
            "[[storage]] number 2: topics = 'a#' is not a topic filter; allowed: a topic filter such as",
        ),
        (
            "[[storage]]\ntopics = 'a'\nqos = [3]\nstorage = 'file'",
            "[[storage]] number 1: qos = [3] is not a list of QoS levels; allowed: a list of 0, 1 and 2",
        ),
        (
            "[[storage]]\ntopics = 'a'\nstorage = 'disk'",
            '[[storage]] number 1: storage = \'disk\' is not one of the choices; allowed: "none" or "memory" or "file"',
        ),
        (
            "[[storage]]\ntopics = 'a'\noffline = 0",
            "[[storage]] number 1: offline = 0 is neither true nor false; allowed: true or false",
        ),
        ("[[storage]]\ntopics = 'a'", "[[storage]] number 1 decides nothing; give it storage, offline or both"),
        (
            "[[mapping]]\ntopics = 'a/#'\nprefix = '$mqtt/x'\nshards = 1",
            "[[mapping]] number 1: prefix = '$mqtt/x' cannot be used; allowed: a topic name that does not begin with",
        ),
        (
            "[[mapping]]\ntopics = 'a/#'\nprefix = 'x'\nshards = 0",
            "[[mapping]] number 1: shards = 0 is out of bounds; allowed: 1 to 65536",
        ),
        (
            "[[mapping]]\ntopics = 'a/#'\nprefix = 'x'\nshards = 1\nby = 'time'",
            '[[mapping]] number 1: by = \'time\' is not one of the choices; allowed: "topic" or "publisher"',
        ),
        ("[limits]\nreceive_maximum = 0", "[limits] receive_maximum = 0 is out of bounds; allowed: 1 to 65535"),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_file_key_value_and_what_is_allowed(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'broker.toml'}: {expected}")
    assert "\n" not in message
