"""`journal-broker clients ...`: the clients of all brokers of a store, and ending their connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from broker_adapter.mqtt.cli.config import STORE_OPTION, ConfigOption, SetOption, load, operator, shared_store
from command_line.app import JsonOption
from command_line.output import harmless, write_json, write_table, write_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker_adapter.adapter import StorageAdapter
    from broker_adapter.mqtt.clients.listing import ClientInfo

_NOT_DONE: Final = 1


def list_command(
    *,
    user: str | None = None,
    connected: Annotated[bool, Parameter(negative="")] = False,
    config: ConfigOption = None,
    store: str | None = None,
    settings: SetOption = (),
    json: JsonOption = False,
) -> None:
    """List the clients that have a session in a store, connected or not.

    Args:
        user: Only clients of this user; "" for anonymous ones.
        connected: Only clients that are connected.
        store: URL of the store, instead of the configured one.
    """
    from broker_adapter.cache_queue.cli.connection import ask

    def is_wanted(client: ClientInfo) -> bool:
        return (user is None or client.user == user) and (not connected or bool(client.broker))

    url = shared_store(load(config, settings, broker__store=store))
    clients = ask(url, lambda adapter: _clients(adapter, is_wanted), STORE_OPTION)
    if json:
        for client in clients:
            write_json(client.plain)
        return
    shown = [client.plain for client in clients]
    write_table(
        ("client", "user", "broker", "address", "session ends", "subscriptions"),
        [
            (
                each["client_id"],
                each["user"] or "",
                each["broker"] or "away",
                each["host"] or "",
                each["expires_at"] or "",
                str(each["subscriptions"]),
            )
            for each in shown
        ],
        numeric=("subscriptions",),
    )


async def _clients(adapter: StorageAdapter, is_wanted: Callable[[ClientInfo], bool]) -> list[ClientInfo]:
    from broker_adapter.mqtt.clients.listing import clients_of

    return [client async for client in clients_of(adapter) if is_wanted(client)]


def kick_command(
    client_id: Annotated[str, Parameter(name="CLIENT_ID")],
    /,
    *,
    end_session: Annotated[bool, Parameter(negative="")] = False,
    wait: Annotated[float, Parameter(validator=Number(gte=0))] = 10.0,
    config: ConfigOption = None,
    store: str | None = None,
    settings: SetOption = (),
    json: JsonOption = False,
) -> int:
    """Disconnect a client, at whichever broker it is; it may connect again at once (`ban` prevents that).

    A client of MQTT 5 gets reason code 0x98, administrative action. The broker publishes its will. Exit status 1 if the
    client was not connected, or if its broker does not answer.

    Args:
        client_id: Identifier of the client.
        end_session: End its session, too, also if it is away: subscriptions and waiting messages are dropped.
        wait: How long to wait for the broker, in seconds.
        store: URL of the store, instead of the configured one.
    """
    from broker_adapter.cache_queue.cli.connection import ask
    from broker_adapter.mqtt.clients.kick import Kicked, kick

    url = shared_store(load(config, settings, broker__store=store))
    result = ask(
        url,
        lambda adapter: kick(adapter, client_id, by=operator(), end_session=end_session, timeout_s=wait),
        STORE_OPTION,
    )
    if json:
        write_json({"client_id": client_id, "outcome": result.outcome, "broker": result.broker or None})
    else:
        at = f", broker {result.broker}" if result.broker else ""
        write_text(harmless(f"client {client_id}: {result.outcome}{at}"))
    return 0 if result.outcome in (Kicked.DISCONNECTED, Kicked.ENDED) else _NOT_DONE
