"""The login method ``http``: a web service decides about clients.

It is asked once for each login, a bounded number of times at once and for a bounded time, and its answers are cached.
httpx is imported only where the method is configured: it needs the extra ``logins``.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import ssl
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs
import structlog
import trio

from journal.access.authentication import AttemptDelays
from journal.access.circuit_breaker import CircuitBreaker
from journal.access.login_answers import AnswerError, Verdict, question, verdict_of
from journal.access.logins import Attempt, Identity, Secret
from journal.protocol.errors import AuthenticationError
from journal.settings.logins import OnError

if TYPE_CHECKING:
    import httpx

_MAX_ANSWER_BYTES: Final = 64 * 1024
_REMEMBERED: Final = 10_000
_LONGEST_REFUSAL_S: Final = 10.0
"""Longest time for which an answer other than "allow" is cached: the user may have been added meanwhile."""

OUTCOMES: Final = ("allow", "deny", "ignore", "error")

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


@attrs.frozen(slots=True)
class HttpLoginSettings:
    """How the web service is asked.

    Attributes:
        url: Its address.
        token: Sent as ``Authorization: Bearer``; empty for none.
        ca_file: Authorities of its certificate; those of the system if it is empty.
        timeout_s: Longest time of a request, with the wait for its turn, in seconds.
        max_in_flight: Most requests at once.
        cache_s: How long answers are cached, in seconds; 0 for never.
        on_error: What happens to a client if the service gives no answer.
        tls: The authorities.
    """

    url: str = attrs.field(repr=False)
    token: str = attrs.field(default="", repr=False)
    ca_file: str = ""
    timeout_s: float = 5
    max_in_flight: int = 16
    cache_s: float = 60
    on_error: OnError = OnError.DENY
    tls: ssl.SSLContext | bool = attrs.field(default=False, repr=False, eq=False)

    @property
    def shown_url(self) -> str:
        """The address for messages: without its query, which may contain a secret."""
        return self.url.partition("?")[0]


class _NoTurnError(AnswerError):
    """Too many logins were asked about at the same time."""


@attrs.define(slots=True)
class ServiceStatistics:
    """What happened to questions.

    Attributes:
        outcomes: Number of requests by their outcome.
        cached_count: Questions that were answered from the cache.
    """

    outcomes: Counter[str] = attrs.field(factory=lambda: Counter(dict.fromkeys(OUTCOMES, 0)))
    cached_count: int = 0


class HttpLogin:
    """Accepts clients that a web service allows.

    Args:
        settings: See the attribute.
        clock: Seconds, never going backwards.
        time_s: Seconds since 1970.

    Attributes:
        settings: None if the method is not configured. It may be replaced, which clears the cache.
        statistics: Counts questions.
    """

    kind: Final = "http"
    takes: Final = frozenset(Secret)

    def __init__(
        self,
        settings: HttpLoginSettings | None = None,
        clock: Callable[[], float] = trio.current_time,
        time_s: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._time_s = time_s
        self._key = secrets.token_bytes(32)
        self._cache: OrderedDict[bytes, tuple[float, Verdict]] = OrderedDict()
        self._reloads = 0
        self._delays = AttemptDelays(clock)
        self._breaker = CircuitBreaker()
        self._client: httpx.AsyncClient | None = None
        self._turns: trio.CapacityLimiter | None = None
        self._started = trio.Event()
        self._changed = trio.Event()
        self._settings: HttpLoginSettings | None = None
        self.statistics = ServiceStatistics()
        self.settings = settings

    @property
    def settings(self) -> HttpLoginSettings | None:
        """How the web service is asked."""
        return self._settings

    @settings.setter
    def settings(self, settings: HttpLoginSettings | None) -> None:
        self._cache.clear()
        self._reloads += 1
        if settings == self._settings:
            # The client and its connections are kept.
            return
        self._settings = settings
        self._started = trio.Event()
        self._breaker = CircuitBreaker()
        self._changed.set()

    @property
    def is_left_alone(self) -> bool:
        """Whether the service is not asked, after failures in a row."""
        return self._breaker.is_open

    async def run(self) -> None:
        """Keep connections to the service until cancelled."""
        while True:
            changed = self._changed = trio.Event()
            settings = self._settings
            if settings is None:
                await changed.wait()
                continue
            from journal.net.http_client import bounded_client

            async with bounded_client(settings.tls, settings.max_in_flight) as client:
                self._client, self._turns = client, trio.CapacityLimiter(settings.max_in_flight)
                self._started.set()
                await changed.wait()

    async def check(self, attempt: Attempt, *, is_last: bool) -> Identity | None:
        """Ask the service about a client that sent anything."""
        settings = self._settings
        asked = question(attempt)
        if settings is None or asked is None:
            return None
        verdict = await self._verdict(attempt, asked, settings)
        if verdict is None:
            if settings.on_error is OnError.IGNORE:
                return None
            raise AuthenticationError("the login cannot be decided now; try again later")
        if verdict.result == "ignore":
            return None
        is_over = verdict.expires_at_s is not None and verdict.expires_at_s <= self._time_s()
        if verdict.result == "deny" or is_over:
            self._log(attempt, "the answer has expired" if is_over else "the service denies it")
            raise AuthenticationError("wrong user name or password")
        return Identity(verdict.name, self.kind, settings.url, verdict.expires_at_s, verdict.grants)

    async def _verdict(self, attempt: Attempt, asked: bytes, settings: HttpLoginSettings) -> Verdict | None:
        """The answer of the service, or of the cache; None if there is none."""
        place = self._place_of(attempt)
        now = self._clock()
        cached = self._cache.get(place)
        if cached is not None and now < cached[0]:
            self.statistics.cached_count += 1
            await trio.lowlevel.checkpoint()
            return cached[1]
        name = attempt.user or attempt.certificate_name
        if self._delays.must_wait(name, attempt.host):
            self._log(attempt, "too many refused logins with this name or from there")
            raise AuthenticationError("too many refused logins from there; wait a minute")
        reloads = self._reloads
        try:
            verdict = await self._ask(attempt, asked, settings)
        except AnswerError as error:
            self.statistics.outcomes["error"] += 1
            log.warning("the service of logins gave no answer", url=settings.shown_url, reason=str(error))
            return None
        self.statistics.outcomes[verdict.result] += 1
        if verdict.result == "deny":
            self._delays.failed(name, attempt.host)
        elif verdict.result == "allow":
            self._delays.succeeded(name, attempt.host)
        if reloads == self._reloads:
            # Otherwise the answer may be older than the reload, which clears the cache.
            self._keep(place, verdict, settings)
        return verdict

    async def _ask(self, attempt: Attempt, asked: bytes, settings: HttpLoginSettings) -> Verdict:
        breaker = self._breaker
        if not breaker.may_ask(self._clock()):
            await trio.lowlevel.checkpoint()
            raise AnswerError("it failed several times, and is left alone for a while")
        is_decided = False
        try:
            verdict = await self._exchange(attempt, asked, settings)
            breaker.succeeded()
            is_decided = True
        except _NoTurnError:
            # Many logins at once say nothing about the service.
            raise
        except AnswerError:
            breaker.failed(self._clock())
            is_decided = True
            raise
        finally:
            if not is_decided:
                breaker.abandoned()
        return verdict

    async def _exchange(self, attempt: Attempt, asked: bytes, settings: HttpLoginSettings) -> Verdict:
        import httpx

        from journal.net.http_client import exchange

        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if settings.token:
            headers["Authorization"] = f"Bearer {settings.token}"
        is_asked = False
        try:
            with trio.fail_after(settings.timeout_s):
                await self._started.wait()
                assert self._client is not None
                assert self._turns is not None
                async with self._turns:
                    is_asked = True
                    received = await exchange(
                        self._client, "POST", settings.url, headers, asked, max_bytes=_MAX_ANSWER_BYTES
                    )
        except trio.TooSlowError as error:
            if not is_asked:
                raise _NoTurnError(f"{settings.max_in_flight} other logins were asked about meanwhile") from error
            raise AnswerError(f"no answer within {settings.timeout_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, RuntimeError) as error:
            # A client that was closed by a reload meanwhile raises RuntimeError.
            raise AnswerError(f"it cannot be reached: {str(error) or type(error).__name__}") from error
        if received.is_encoded:
            raise AnswerError("it answered with a compressed body, which is not read")
        if received.is_cut:
            raise AnswerError(f"it answered with more than {_MAX_ANSWER_BYTES} bytes")
        return verdict_of(received.status, received.body, attempt)

    def _keep(self, place: bytes, verdict: Verdict, settings: HttpLoginSettings) -> None:
        if not settings.cache_s:
            return
        kept_s = settings.cache_s if verdict.result == "allow" else min(settings.cache_s, _LONGEST_REFUSAL_S)
        self._cache[place] = (self._clock() + kept_s, verdict)
        self._cache.move_to_end(place)
        if len(self._cache) > _REMEMBERED:
            self._cache.popitem(last=False)

    def _place_of(self, attempt: Attempt) -> bytes:
        """A digest of all that an answer depends on; the cache has no secrets."""
        parts = (
            attempt.user,
            attempt.password,
            attempt.token,
            attempt.client_id,
            attempt.host,
            attempt.certificate_name,
        )
        return hmac.digest(self._key, repr(parts).encode(), hashlib.sha256)

    def _log(self, attempt: Attempt, reason: str) -> None:
        log.info("login refused", method=self.kind, peer=attempt.peer, client=attempt.shown_client, reason=reason)

    def still_accepts(self, identity: Identity) -> bool:
        """Whether the same service decides."""
        return self._settings is not None and identity.proof == self._settings.url

    def may_know(self, name: str) -> bool:
        """Whether the service may allow this user."""
        return self._settings is not None and bool(name)
