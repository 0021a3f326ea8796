"""`journal-broker ban ...`: users, client identifiers and networks that may not connect to any broker of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Number

from broker_adapter.mqtt.cli.config import STORE_OPTION, ConfigOption, SetOption, load, operator, shared_store
from command_line.app import JsonOption
from command_line.output import harmless, note, write_json, write_table, write_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker_adapter.adapter import StorageAdapter
    from broker_adapter.mqtt.rules.stored import StoredFollower

KindArgument: TypeAlias = Annotated[
    Literal["user", "client", "network"],
    Parameter(name="KIND", help="What NAME is: a user, a client identifier, or an address or network."),
]
NameArgument: TypeAlias = Annotated[str, Parameter(name="NAME", help="Such as mallory, sensor-7 or 192.0.2.0/24.")]
WaitOption: TypeAlias = Annotated[
    float, Parameter(validator=Number(gte=0), help="How long to wait for brokers, in seconds.")
]

_NOT_FOLLOWED: Final = 1
_ANSWER_S: Final = 30.0
"""How long to retry when the store's answer to the change was lost."""

_SECOND_US: Final = 1_000_000


def add_command(
    kind: KindArgument,
    name: NameArgument,
    /,
    *,
    for_: Annotated[str, Parameter(name="--for")] = "",
    reason: str = "",
    wait: WaitOption = 10.0,
    config: ConfigOption = None,
    store: str | None = None,
    settings: SetOption = (),
    json: JsonOption = False,
) -> int:
    """Ban a user, a client identifier or a network at all brokers of a store, in place of an earlier ban of it.

    Its clients are disconnected at once, their wills are not published, and their CONNECT is refused: with 0x8A, banned
    (MQTT 3.1.1: 5). Sessions stay; `clients kick --end-session` ends them. Exit status 1 if a broker does not apply the
    ban in time.

    Args:
        for_: How long it lasts, such as 30m or 7d; without it until it is removed.
        reason: Why, for `ban list` and the audit logs.
        store: URL of the store, instead of the configured one.
    """
    from broker_adapter.mqtt.access.bans import Ban, BanKind, checked_name, checked_reason
    from broker_adapter.mqtt.bans.store import add_ban
    from broker_adapter.mqtt.rules.report import time_text
    from command_line.quantities import parse_duration_s
    from shards.seams.clock import SystemClock

    wanted = load(config, settings, broker__store=store)
    now_us = SystemClock().now_us()
    until_us = now_us + parse_duration_s(for_) * _SECOND_US if for_ else 0
    found = BanKind(kind)
    ban = Ban(found, checked_name(found, name), until_us, checked_reason(reason), now_us, operator())
    return _change(
        shared_store(wanted),
        lambda adapter: add_ban(adapter, ban, now_us=now_us, max_bans=wanted.access.max_bans, within_s=_ANSWER_S),
        wait,
        f"{kind} {ban.name}: banned{f' until {time_text(until_us)}' if until_us else ''}",
        {"kind": kind, "name": ban.name},
        json=json,
    )


def remove_command(
    kind: KindArgument,
    name: NameArgument,
    /,
    *,
    wait: WaitOption = 10.0,
    config: ConfigOption = None,
    store: str | None = None,
    settings: SetOption = (),
    json: JsonOption = False,
) -> int:
    """Remove a ban at all brokers of a store.

    Exit status 1 if a broker does not apply it in time.

    Args:
        store: URL of the store, instead of the configured one.
    """
    from broker_adapter.mqtt.access.bans import BanKind, checked_name
    from broker_adapter.mqtt.bans.store import remove_ban
    from shards.seams.clock import SystemClock

    found = BanKind(kind)
    checked = checked_name(found, name)
    now_us = SystemClock().now_us()
    return _change(
        shared_store(load(config, settings, broker__store=store)),
        lambda adapter: remove_ban(adapter, found, checked, by=operator(), now_us=now_us, within_s=_ANSWER_S),
        wait,
        f"{kind} {checked}: not banned any more",
        {"kind": kind, "name": checked},
        json=json,
    )


def list_command(
    *, config: ConfigOption = None, store: str | None = None, settings: SetOption = (), json: JsonOption = False
) -> None:
    """List the bans of a store, except for those that have ended.

    Args:
        store: URL of the store, instead of the configured one.
    """
    from broker_adapter.cache_queue.cli.connection import ask
    from broker_adapter.mqtt.bans.store import read_bans
    from broker_adapter.mqtt.bans.stored import shown_ban
    from shards.seams.clock import SystemClock

    stored = ask(shared_store(load(config, settings, broker__store=store)), read_bans, STORE_OPTION)
    shown = [shown_ban(ban) for ban in sorted(stored.lasting(SystemClock().now_us()), key=lambda ban: ban.key)]
    if json:
        for each in shown:
            write_json(each)
        return
    columns = ("kind", "name", "until", "reason", "since", "by")
    write_table(columns, [tuple(each[name] or "" for name in columns) for each in shown])


def _change(
    store: str,
    change: Callable[[StorageAdapter], Awaitable[int]],
    wait_s: float,
    text: str,
    described: dict[str, object],
    *,
    json: bool,
) -> int:
    from broker_adapter.cache_queue.cli.connection import ask
    from broker_adapter.mqtt.bans.stored import BANS_FOLLOWERS
    from broker_adapter.mqtt.rules.followers import wait_followed

    async def changed(adapter: StorageAdapter) -> tuple[int, dict[str, StoredFollower | None]]:
        version = await change(adapter)
        return version, await wait_followed(adapter, version, timeout_s=wait_s, prefix=BANS_FOLLOWERS)

    version, behind = ask(store, changed, STORE_OPTION)
    if json:
        write_json({**described, "version": version, "behind": sorted(behind)})
    else:
        write_text(harmless(text))
        for broker_id in sorted(behind):
            note(
                "journal-broker", f"the broker {broker_id} does not apply it; is it frozen, dead, or too old for bans?"
            )
    return _NOT_FOLLOWED if behind else 0
