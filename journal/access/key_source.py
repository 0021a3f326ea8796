"""The keys of JSON Web Tokens from a URL: cached, fetched again at intervals and when a token names a new key.

While the URL does not answer, the last good keys are used.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

import attrs
import structlog
import trio

from journal.access.json_web_keys import KeySet, KeySetError, parse_key_set
from journal.access.key_statistics import KeyStatistics
from shards.back_off import BackOff

_MAX_BYTES: Final = 1 << 20
_OK: Final = 200
_LEAST_INTERVAL_S: Final = 10.0
"""Shortest time between two fetches, whatever tokens name."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


@attrs.frozen(slots=True)
class KeyAddress:
    """Where keys are fetched.

    Attributes:
        url: The address.
        ca_file: Authorities of its certificate; those of the system if it is empty.
        timeout_s: Longest time of a fetch.
        refresh_s: Time between fetches.
    """

    url: str
    ca_file: str
    timeout_s: int
    refresh_s: int


class FetchError(Exception):
    """The keys cannot be fetched now."""


async def fetch_keys(address: KeyAddress, tls: ssl.SSLContext | bool) -> KeySet:
    """Fetch a key set once.

    Raises:
        FetchError: There is no answer in time, or it is no key set.
    """
    import httpx

    from journal.net.http_client import bounded_client, exchange

    try:
        with trio.fail_after(address.timeout_s):
            async with bounded_client(tls, 1) as client:
                received = await exchange(
                    client, "GET", address.url, {"Accept": "application/json"}, max_bytes=_MAX_BYTES
                )
    except trio.TooSlowError as error:
        raise FetchError(f"no answer within {address.timeout_s} s") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise FetchError(f"it cannot be reached: {str(error) or type(error).__name__}") from error
    if received.status != _OK:
        raise FetchError(f"it answered with status {received.status}")
    if received.is_encoded:
        raise FetchError("it answered with a compressed body, which is not read")
    if received.is_cut:
        raise FetchError(f"it answered with more than {_MAX_BYTES} bytes")
    try:
        return parse_key_set(received.body, takes_secrets=False)
    except KeySetError as error:
        raise FetchError(f"its answer {error}") from error


class KeySource:
    """Keys that are fetched from a URL.

    Args:
        address: Where they are.
        tls: Authorities of its certificate.
        statistics: Counts fetches.
        clock: Seconds, never going backwards.
    """

    def __init__(
        self,
        address: KeyAddress,
        tls: ssl.SSLContext | bool,
        statistics: KeyStatistics,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self.address = address
        self._tls = tls
        self._statistics = statistics
        self._clock = clock
        self._keys: KeySet | None = None
        self._wanted = trio.Event()
        self._fetched = trio.Event()
        self._last_s: float | None = None
        self._back_off = BackOff(1.0, 60.0)

    @property
    def keys(self) -> KeySet | None:
        """The last good keys; None before the first ones."""
        return self._keys

    async def newer_keys(self) -> KeySet | None:
        """The keys after a fetch, for a token with an unknown key; the present ones if they were fetched just now.

        It takes as long as a fetch, whose time is bounded.
        """
        is_due = self._last_s is None or self._clock() - self._last_s >= _LEAST_INTERVAL_S
        if is_due or self._wanted.is_set():
            self._wanted.set()
            with trio.move_on_after(self.address.timeout_s + 1):
                await self._fetched.wait()
        return self._keys

    async def run(self) -> None:
        """Fetch until cancelled."""
        failures = 0
        while True:
            # Tokens with an unknown key that come during the fetch wait for it.
            self._wanted.set()
            self._last_s = self._clock()
            is_good = await self._fetch()
            failures = 0 if is_good else failures + 1
            fetched, self._fetched, self._wanted = self._fetched, trio.Event(), trio.Event()
            fetched.set()
            wait_s = self.address.refresh_s if is_good else self._back_off.delay_s(failures - 1)
            with trio.move_on_after(wait_s):
                await self._wanted.wait()

    async def _fetch_safely(self) -> KeySet:
        try:
            return await fetch_keys(self.address, self._tls)
        except FetchError:
            raise
        except Exception as error:
            # An unforeseen error of the client library must not end the program.
            log.exception("unexpected error", url=shown(self.address.url))
            raise FetchError(f"{type(error).__name__}") from error

    async def _fetch(self) -> bool:
        statistics, url = self._statistics, self.address.url
        try:
            keys = await self._fetch_safely()
        except FetchError as error:
            statistics.failure_count += 1
            statistics.is_failing = True
            kept = 0 if self._keys is None else len(self._keys)
            log.warning("the keys of tokens cannot be fetched", url=shown(url), reason=str(error), kept_keys=kept)
            return False
        was_failing = statistics.is_failing or self._keys is None
        statistics.fetch_count += 1
        statistics.is_failing = False
        self._keys = keys
        if was_failing or keys.unusable:
            log.info("fetched the keys of tokens", url=shown(url), keys=len(keys), unusable=list(keys.unusable))
        return True


def shown(url: str) -> str:
    """A URL for messages: without its query, which may contain a secret."""
    return url.partition("?")[0]
