"""What all pages of the administration of brokers share: who may ask, and answers to requests that fail.

Rights are in the table of `journal.access.rights`, under the operations at a broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final, TypeVar
from urllib.parse import parse_qsl

import attrs
import msgspec
import structlog

from broker_adapter.adapter import StorageAdapter
from broker_adapter.errors import AuthenticationError, InvalidRequestError, NotAuthorizedError, StorageError
from broker_adapter.mqtt.access.audit import BrokerAudit
from broker_adapter.mqtt.access.permissions import Principal
from broker_adapter.mqtt.access.users import AccessControl
from broker_adapter.mqtt.admin.problems import NotADocumentError, NotReadyError, PageRefusedError, problem_reply
from journal.access.authorization import Action, Resource
from journal.access.rights import Operation, Use
from journal.net.origins import Origins
from journal.telemetry.http_pages import Page, Reply, Request
from shards.seams.clock import Clock, SystemClock

JSON: Final = "application/json"
MAX_WAIT_S: Final = 60.0

_T = TypeVar("_T")

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


@attrs.frozen
class AtWork:
    """The objects that the pages need while the broker serves clients.

    Attributes:
        adapter: The store.
        broker_id: Id of this broker.
        is_shared: Whether other brokers can use the store. Otherwise the rules are those of the settings.
    """

    adapter: StorageAdapter
    broker_id: str
    is_shared: bool


@attrs.frozen
class Asker:
    """An authenticated administrator.

    Attributes:
        name: The user name.
        peer: Its address, ``HOST:0``.
    """

    name: str
    peer: str

    def at(self, broker_id: str) -> str:
        """The asker as the one who did something, for other brokers and people."""
        return f"{self.name}@{broker_id}"


CarryOut = Callable[[Request, Asker], Awaitable[Reply]]


class Administration:
    """Authenticates administrators, and answers their requests.

    Args:
        access: Authenticates users, and says who is an administrator.
        working_on: Returns the objects that pages need; or, while the broker is not ready, the reason as text.
        audit: The audit log.
        clock: Gives the time of changes.
        origins: The web pages that may send requests.

    Attributes:
        audit: The audit log.
        clock: Gives the time of changes.
    """

    def __init__(
        self,
        access: AccessControl,
        working_on: Callable[[], AtWork | str],
        audit: BrokerAudit | None = None,
        clock: Clock | None = None,
        origins: Origins | None = None,
    ) -> None:
        self._access = access
        self._origins = origins or Origins()
        self._working_on = working_on
        self.audit = audit or BrokerAudit()
        self.clock = clock or SystemClock()

    def page(self, operation: Operation, carry_out: CarryOut) -> Page:
        """A page that carries out an operation for those who have the right to it; errors become problem details."""

        async def answer(request: Request) -> Reply:
            if refusal := self._origins.origin_refusal(request.headers.get("origin")):
                return problem_reply(PageRefusedError(refusal), HTTPStatus.FORBIDDEN)
            try:
                asker = await self._admit(request, operation)
            except AuthenticationError as error:
                return problem_reply(error, HTTPStatus.UNAUTHORIZED)
            except NotAuthorizedError as error:
                return problem_reply(error, HTTPStatus.FORBIDDEN)
            try:
                return await carry_out(request, asker)
            except StorageError as error:
                return problem_reply(error)

        return answer

    @property
    def ready(self) -> AtWork:
        """The objects that pages need.

        Raises:
            NotReadyError: The broker is not ready.
        """
        on = self._working_on()
        if isinstance(on, str):
            raise NotReadyError(f"{on}; try again when the broker is ready")
        return on

    async def _admit(self, request: Request, operation: Operation) -> Asker:
        user, password = request.credentials
        peer = f"{request.host}:0"
        principal = await self._access.authenticate("", user, password, peer)
        if principal is None or not principal.username:
            self.audit.login_refused(user, peer)
            raise AuthenticationError("name a user of access.users_file and its password")
        self.audit.logged_in(principal, peer)
        if not Use(operation).is_allowed(_Rights(self._access, principal)):
            self.audit.denied("administer", principal, peer, operation)
            log.warning("this user may not administer", user=principal.username, operation=operation, peer=request.host)
            raise NotAuthorizedError(
                f"the user {principal.username!a} may not {operation}; add it to access.administrators"
            )
        return Asker(principal.username, peer)


@attrs.frozen
class _Rights:
    """The rights of a user in the sense of `journal.access.authorization.Principal`."""

    access: AccessControl
    principal: Principal

    @property
    def name(self) -> str:
        return self.principal.username

    def may(self, action: Action, resource: Resource, _name: str) -> bool:
        is_about_brokers = action is Action.ADMINISTER and resource is Resource.BROKERS
        return is_about_brokers and self.access.may_administer(self.principal)


def query_of(text: str, kind: type[_T]) -> _T:
    """The query parameters of a request.

    Raises:
        InvalidRequestError: One is unknown, given twice, missing or of another type.
    """
    items = parse_qsl(text, keep_blank_values=True)
    if len(dict(items)) < len(items):
        raise InvalidRequestError("a parameter is given more than once")
    try:
        return msgspec.convert(dict(items), kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"query: {error}") from error


def require_wait(wait_s: float) -> float:
    """Check how long a request wants to wait.

    Raises:
        InvalidRequestError: It is out of bounds.
    """
    if not 0 <= wait_s <= MAX_WAIT_S:
        raise InvalidRequestError(f"wait={wait_s} is out of bounds; allowed: 0 to {MAX_WAIT_S:.0f} seconds")
    return wait_s


def body_of(request: Request, kind: type[_T]) -> _T:
    """The JSON in the body of a request.

    Raises:
        NotADocumentError: It is sent as something else.
        InvalidRequestError: It is not what is expected.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != JSON:
        raise NotADocumentError(f"the body has {content_type[:100] or 'no content type'}; send it as {JSON}")
    try:
        return msgspec.json.decode(request.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"the body: {error}") from error


def json_reply(body: object, status: HTTPStatus = HTTPStatus.OK) -> Reply:
    """An answer in JSON."""
    return Reply(msgspec.json.encode(body) + b"\n", status, JSON)
