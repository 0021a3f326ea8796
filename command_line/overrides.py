"""Single settings on the command line: `--set SECTION.KEY=VALUE`, which override the configuration file."""

from __future__ import annotations

from collections.abc import Sequence

from command_line.boundary import UsageError


def overrides_of(settings: Sequence[str], *, listed_by: str) -> dict[str, object]:
    """Parse ``SECTION.KEY=VALUE`` texts to settings by dotted name.

    Args:
        settings: The given texts.
        listed_by: Command that prints all settings, for the messages.

    Raises:
        UsageError: A text has another form, or a setting is named twice.
    """
    overrides: dict[str, object] = {}
    for setting in settings:
        name, equals, value = (part.strip() for part in setting.partition("="))
        section, dot, key = name.partition(".")
        if not (equals and section and dot and key):
            raise UsageError(
                f"--set {setting!r} is not a setting; write it as SECTION.KEY=VALUE, for example "
                f"--set log.level=debug (`{listed_by}` lists all settings)"
            )
        if name in overrides:
            raise UsageError(f"--set names {name} twice, as {overrides[name]} and as {value}; leave one of them out")
        overrides[name] = _value(value)
    return overrides


def _value(text: str) -> object:
    """The value as in a configuration file: no setting is a text that looks like a number or like true and false."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.removeprefix("-").isdecimal() else text
