"""Which brokers are alive. Each keeps renewing its lease; `orphan_cleanup` closes the sessions of dead ones."""

from __future__ import annotations

import logging
import secrets

import trio

from broker_adapter.adapter import Reconnection
from broker_adapter.errors import CorruptionError, FormatVersionError, StorageError, VersionConflictError
from broker_adapter.lease_watch import LeaseWatch
from broker_adapter.mqtt.session import keys
from broker_adapter.mqtt.session.errors import BrokerReplacedError
from broker_adapter.mqtt.session.settings import SessionSettings
from broker_adapter.mqtt.session.store_retry import StoreRetry, may_pass
from broker_adapter.mqtt.session.stored import Lease, instance_of
from broker_adapter.state_forms import decode, encode
from shards.model import StateValue

_log = logging.getLogger(__name__)


class Leases:
    """This broker's lease, and what it knows about the leases of others.

    Args:
        store_retry: The store.
        broker_id: Unique among the brokers of the store.

    Attributes:
        broker_id: This broker.
        alive: The brokers that were alive at the last look, including this one.
    """

    def __init__(self, store_retry: StoreRetry, broker_id: str, settings: SessionSettings) -> None:
        self._store_retry = store_retry
        self.broker_id = broker_id
        self._key = keys.broker(broker_id)
        # Tells other brokers the name under which the store knows this process.
        self._instance = instance_of(secrets.token_hex(8), store_retry.adapter.client_name)
        self._renewal_number = 0
        # Stored in the lease until it is done: if this process dies, its successor ends their connections.
        self._unfenced: frozenset[str] = frozenset()
        self._version = 0
        self.alive: tuple[str, ...] = (broker_id,)
        self._watch = LeaseWatch(settings.lease_s, 2 * settings.renew_interval_s)

    async def take(self) -> None:
        """Take the lease of this broker id, and end the connection to the store of a process that had it before."""
        attempt = 0
        while True:
            found = await self._store_retry.get(self._key)
            if found is not None:
                self._unfenced |= decode(Lease, found.key, found.value).clients - {
                    self._store_retry.adapter.client_name
                }
            try:
                await self._put(found.version if found is not None else 0)
            except StorageError as error:
                await self._store_retry.pause_after(error, attempt)
            else:
                break
            attempt += 1
        for name in self._unfenced:
            await self._store_retry.end_client(name)
        self._unfenced = frozenset()

    async def is_valid(self, store: Reconnection) -> bool:
        """Whether the lease in the store is still this process's, and does not declare it dead.

        Raises:
            StorageError: The store does not answer.
        """
        found = await store.get_state(self._key)
        if found is None:
            return False
        try:
            lease = decode(Lease, found.key, found.value)
        except (CorruptionError, FormatVersionError) as error:
            _log.warning("the lease of broker %r is not this process's: %s", self.broker_id, error)
            return False
        return lease.instance == self._instance and not lease.adopter

    async def renew(self) -> bool:
        """Renew the lease; retries as long as the store does not answer.

        Returns:
            Whether this broker had been declared dead meanwhile; then other brokers may have closed sessions of it.

        Raises:
            BrokerReplacedError: Another process uses this broker id.
        """
        attempt = 0
        was_declared_dead = False
        while True:
            try:
                await self._put(self._version)
            except StorageError as error:
                if not isinstance(error, VersionConflictError) and not may_pass(error):
                    raise
            else:
                return was_declared_dead
            await self._store_retry.pause(attempt)
            attempt += 1
            found = await self._store_retry.get(self._key)
            if found is None:
                was_declared_dead = was_declared_dead or self._version != 0
                self._version = 0
                continue
            lease = decode(Lease, found.key, found.value)
            if lease.instance != self._instance:
                raise BrokerReplacedError(
                    f"another process runs as broker {self.broker_id!r}: each broker of a store needs an id of its own"
                )
            was_declared_dead = was_declared_dead or bool(lease.adopter)
            self._version = found.version

    async def look(self) -> tuple[list[str], dict[str, StateValue]]:
        """Read the other brokers' leases.

        Returns:
            The brokers that have renewed their lease, and the leases that have run out.

        Raises:
            StorageError: The store does not answer.
        """
        began_s = trio.current_time()
        found: dict[str, StateValue] = {}
        async with self._store_retry.scan(keys.BROKERS) as values:
            async for value in values:
                broker_id = value.key.removeprefix(keys.BROKERS).decode()
                if broker_id != self.broker_id:
                    found[broker_id] = value
        versions = {broker_id: value.version for broker_id, value in found.items()}
        changed, run_out = self._watch.look(began_s, trio.current_time(), versions)
        dead = {broker_id for broker_id, value in found.items() if decode(Lease, value.key, value.value).adopter}
        self.alive = (self.broker_id, *(one for one in found if one not in dead and one not in run_out))
        return [one for one in changed if one not in dead], {one: found[one] for one in run_out}

    async def claim(self, lease: StateValue) -> StateValue | None:
        """Declare a broker dead whose lease has run out, so that only this broker closes its sessions.

        It is repeated at intervals while the sessions are being closed.

        Returns:
            The lease as it is now; None if another broker was first, or the broker has renewed it.
        """
        found = decode(Lease, lease.key, lease.value)
        claimed = Lease(found.instance, found.renewal_number, self.broker_id, found.unfenced)
        try:
            return await self._store_retry.adapter.put_state(lease.key, encode(claimed), expected_version=lease.version)
        except VersionConflictError:
            return None

    async def end_client(self, lease: StateValue) -> None:
        """Have the store close the connections of a dead broker: its deliveries in groups go to the other members.

        Raises:
            StorageError: The store does not answer.
        """
        for name in decode(Lease, lease.key, lease.value).clients:
            await self._store_retry.adapter.end_client(name)

    async def remove(self, lease: StateValue) -> None:
        """Delete the lease of a dead broker that has no sessions left; does nothing if it was renewed meanwhile."""
        try:
            await self._store_retry.adapter.delete_state(lease.key, expected_version=lease.version)
        except VersionConflictError:
            _log.info("a broker that was declared dead is back: %r", lease.key)

    async def give_back(self) -> None:
        """Delete this broker's lease: it has no sessions any more."""
        await self._store_retry.adapter.delete_state(self._key, expected_version=self._version)

    async def _put(self, expected_version: int) -> None:
        self._renewal_number += 1
        lease = encode(Lease(self._instance, self._renewal_number, unfenced=tuple(sorted(self._unfenced))))
        stored = await self._store_retry.adapter.put_state(self._key, lease, expected_version=expected_version)
        self._version = stored.version
