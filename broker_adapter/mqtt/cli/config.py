"""The configuration of a broker on the command line: options that name it, `journal-broker config` and `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import Parameter

from command_line.boundary import UsageError
from command_line.output import write_text
from command_line.overrides import overrides_of
from command_line.shipped_files import print_default_file
from shards.quantities import counted

if TYPE_CHECKING:
    from broker_adapter.mqtt.config import BrokerConfig


ConfigOption: TypeAlias = Annotated[
    str | None,
    Parameter(
        name="--config",
        help="Configuration file (`journal-broker config --default` prints one); missing settings have their default.",
    ),
]
SetOption: TypeAlias = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        negative="",
        help="One setting as SECTION.KEY=VALUE, instead of the configured one, for example "
        "--set access.anonymous=true; may be given many times.",
    ),
]

LISTED_BY = "journal-broker config --default"

STORE_OPTION = "--store URL"
"""The option that names another store, for error messages."""


def load(config: str | None, settings: tuple[str, ...], **named: object) -> BrokerConfig:
    """The settings of a file and of the command line together.

    Args:
        config: The file; None for the defaults.
        settings: Values of `--set`.
        named: Values of other options, by section and key joined by two underscores; None for an option not given.

    Raises:
        ConfigurationError: A setting is wrong.
        UsageError: `--set` has another form.
    """
    from broker_adapter.mqtt.config import load_broker_config

    overrides = overrides_of(settings, listed_by=LISTED_BY)
    overrides.update({name.replace("__", "."): value for name, value in named.items() if value is not None})
    return load_broker_config(config, overrides)


def shared_store(config: BrokerConfig) -> str:
    """The store of the settings, for a command that asks the brokers that use it.

    Raises:
        UsageError: It is in the process of its only broker, where no command reaches it.
    """
    from broker_adapter.opening import is_shared

    if not is_shared(config.broker.store):
        raise UsageError(
            f"{config.broker.store} is the store of a single broker: ask that broker over HTTP (listen.http), or name "
            "a server that brokers share with --store"
        )
    return config.broker.store


def operator() -> str:
    """Who runs the command, for people."""
    import getpass
    import socket

    return f"{getpass.getuser()}@{socket.gethostname()}"


def config(*, default: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Print the commented configuration file, every setting at its default: `journal-broker config --default`.

    Args:
        default: Print the defaults. Required, because there is nothing else to print yet.
    """
    print_default_file("conf/broker.toml", program="journal-broker", default=default)


def check(
    *,
    config: ConfigOption = None,
    anonymous: Annotated[bool, Parameter(negative="")] = False,
    settings: SetOption = (),
) -> int:
    """Read a configuration and all files that it names, and say what is wrong with them.

    It also says who can connect, what they may do, what goes in clear text, and which rules each role has.

    Exit status 1 if a broker would not start with it, or if no client could connect.

    Args:
        anonymous: Accept all clients without a password, as a broker does that is started with it.
    """
    import trio

    from broker_adapter.mqtt.broker.composition import access_control_of, tls_of, why_no_client_can_connect
    from broker_adapter.mqtt.broker.exposure import exposure_of, strangers_of
    from journal.access.login_report import login_report

    wanted = load(config, settings, access__anonymous=True if anonymous else None)
    tls_of(wanted)
    credentials = access_control_of(wanted).logins.credentials
    if missing := why_no_client_can_connect(wanted, credentials):
        write_text(missing)
        return 1
    user_count = len(credentials.users or ())
    counts = (
        (len(wanted.access.rules), "access rule"),
        (len(wanted.storage), "storage rule"),
        (len(wanted.mapping), "mapping rule"),
        (len(wanted.bridge), "bridge"),
        (user_count, "user"),
    )
    parts = ", ".join(counted(count, what) for count, what in counts)
    write_text(f"{'the defaults' if config is None else config}: a broker can start with it; {parts}")
    write_text(exposure_of(wanted, user_count, strangers_of(wanted, credentials)).text)
    for role in wanted.access.roles:
        numbers = [str(number) for number, rule in enumerate(wanted.access.rules, 1) if rule.role == role.name]
        plural = "" if len(numbers) == 1 else "s"
        write_text(f"role {role.name}: access rule{plural} {', '.join(numbers)}; {', '.join(role.users) or 'no user'}")
    for sentence in trio.run(login_report, credentials):
        write_text(sentence)
    return 0
