"""`journal-broker config` and `journal-broker check`: the commented configuration file, and a check of one."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from broker_adapter.mqtt.cli.settings_options import ConfigOption, SetOption, load
from command_line.output import write_text
from command_line.shipped_files import print_default_file


def config(*, default: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Print the commented configuration file, every setting at its default: `journal-broker config --default`.

    Args:
        default: Print the defaults. Required, because there is nothing else to print yet.
    """
    print_default_file("conf/broker.toml", program="journal-broker", default=default)


def check(*, config: ConfigOption = None, settings: SetOption = ()) -> int:
    """Read a configuration and all files that it names, and say what is wrong with them.

    It also says who can connect, what they may do, and what goes in clear text.

    Exit status 1 if a broker would not start with it, or if no client could connect.
    """
    from broker_adapter.mqtt.broker.composition import access_control_of, tls_of, why_no_client_can_connect
    from broker_adapter.mqtt.broker.exposure import exposure_of

    wanted = load(config, settings)
    tls_of(wanted)
    users = access_control_of(wanted).authentication.users
    if missing := why_no_client_can_connect(wanted, users):
        write_text(missing)
        return 1
    user_count = 0 if users is None else len(users)
    counts = (
        (len(wanted.access.rules), "access rules"),
        (len(wanted.storage), "storage rules"),
        (len(wanted.mapping), "mapping rules"),
        (len(wanted.bridge), "bridges"),
        (user_count, "users"),
    )
    parts = ", ".join(f"{count} {what}" for count, what in counts)
    write_text(f"{'the defaults' if config is None else config}: a broker can start with it; {parts}")
    write_text(exposure_of(wanted, user_count).text)
    return 0
