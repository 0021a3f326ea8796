"""The options by which commands get the broker's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import Parameter

from command_line.overrides import overrides_of

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
