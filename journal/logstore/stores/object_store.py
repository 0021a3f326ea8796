"""A log store in an object store: S3 and what speaks it, Google Cloud Storage, Azure Blob Storage. By obstore.

obstore has a loop of its own that repeats requests, also conditional ones, and hides what became of the first
attempt. It must be switched off: `open_s3` does so, and every store given to `ObjectLogStore` has to be made with
``retry_config={"max_retries": 0}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, S3Store

from journal.logstore.errors import (
    LogStoreError,
    StoreCredentialsError,
    StoreFullError,
    StoreUnreachableError,
    UnknownOutcomeError,
)
from journal.logstore.keys import check_key, folder_of
from journal.logstore.store import Created

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Config

_T = TypeVar("_T")

TIMEOUT_S: Final = 10.0
_CREDENTIALS: Final = {
    "AccessDenied",
    "AuthorizationHeaderMalformed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
}
_NO_BUCKET: Final = {"NoSuchBucket", "ContainerNotFound"}
_FULL: Final = {"InsufficientStorage", "QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull"}
_MOST_MESSAGE: Final = 500

# obstore has no fields for what the store answered, only this text. Behind "Debug source" it repeats all of it.
_DETAILS: Final = "Debug source:"
_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})([^:\n]*)")
_CODE: Final = re.compile(r"<Code>([^<]*)</Code>|\(code: (\w+)\)")
_SAID: Final = re.compile(r"<Message>([^<]*)</Message>")
_PLACE: Final = re.compile(r"Error performing [A-Z]+ (\w+://[^/\s]+)")
_CAUSE: Final = re.compile(r'(?:message|error): "([^"]*)"')
_NOT_SENT: Final = "kind: Connect,"
"""No request left this machine: the connection was never made."""

_TIMED_OUT: Final = "kind: Timeout,"


def open_s3(
    bucket: str,
    endpoint: str | None = None,
    *,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    region: str = "us-east-1",
    timeout_s: float = TIMEOUT_S,
) -> ObjectLogStore:
    """A log store in a bucket of S3 or of something that speaks its protocol.

    Args:
        bucket: The bucket, which must exist.
        endpoint: Address of a server that is not Amazon's, as ``http://host:port``.
        access_key_id: The name of a key; from the environment by default, as is its secret.
        secret_access_key: Its secret.
        region: The region of the bucket.
        timeout_s: How long one request may take, in seconds.
    """
    config: S3Config = {"region": region, "virtual_hosted_style_request": endpoint is None}
    if endpoint is not None:
        config["endpoint"] = endpoint
    if access_key_id is not None:
        config["access_key_id"] = access_key_id
    if secret_access_key is not None:
        config["secret_access_key"] = secret_access_key
    is_plain = endpoint is not None and endpoint.startswith("http://")
    client_options: ClientConfig = {"timeout": f"{timeout_s}s", "allow_http": is_plain}
    retry_config: RetryConfig = {"max_retries": 0}
    return ObjectLogStore(S3Store(bucket, config=config, client_options=client_options, retry_config=retry_config))


def open_gcs(bucket: str, *, timeout_s: float = TIMEOUT_S) -> ObjectLogStore:
    """A log store in a bucket of Google Cloud Storage, with the credentials of the environment or the platform."""
    client_options: ClientConfig = {"timeout": f"{timeout_s}s"}
    retry_config: RetryConfig = {"max_retries": 0}
    return ObjectLogStore(GCSStore(bucket, client_options=client_options, retry_config=retry_config))


def open_azure(container: str, *, timeout_s: float = TIMEOUT_S) -> ObjectLogStore:
    """A log store in a container of Azure Blob Storage, with the credentials of the environment or the platform."""
    client_options: ClientConfig = {"timeout": f"{timeout_s}s"}
    retry_config: RetryConfig = {"max_retries": 0}
    return ObjectLogStore(AzureStore(container, client_options=client_options, retry_config=retry_config))


class ObjectLogStore:
    """Objects of an obstore store.

    A 409 to a create is `Created.EXISTS` here, because obstore does not tell it from 412. A caller that has to know
    reads the key.

    Args:
        store: The store, made without retries.
    """

    def __init__(self, store: ObjectStore) -> None:
        # Stores in memory and in a directory have nothing to repeat.
        if isinstance(store, AzureStore | GCSStore | S3Store) and (store.retry_config or {}).get("max_retries") != 0:
            raise ValueError('the store repeats requests by itself: make it with retry_config={"max_retries": 0}')
        self._store = store

    def create(self, key: str, data: bytes) -> Created:
        check_key(key)

        def put() -> Created:
            try:
                # Never in parts: the condition would hold for the last request alone.
                obstore.put(self._store, key, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return Created.EXISTS
            return Created.OURS

        return _mapped("create", key, put)

    def get(self, key: str) -> bytes | None:
        check_key(key)

        def read() -> bytes | None:
            try:
                return bytes(obstore.get(self._store, key).bytes())
            except FileNotFoundError as error:
                if _is_bucket_missing(error):
                    raise
                return None

        return _mapped("get", key, read)

    def list_after(self, key: str) -> list[str]:
        folder = folder_of(key)

        def read() -> list[str]:
            # A folder as an offset is before all of its keys.
            pages = obstore.list(self._store, prefix=folder.rstrip("/"), offset=key)
            found = (item["path"] for page in pages for item in page)
            return [name for name in found if name > key and folder_of(name) == folder]

        return _mapped("list", key, read)

    def delete(self, key: str) -> None:
        check_key(key)

        def remove() -> None:
            try:
                obstore.delete(self._store, key)
            except FileNotFoundError as error:
                if _is_bucket_missing(error):
                    raise

        _mapped("delete", key, remove)

    def close(self) -> None:
        """Connections are closed when they have been idle for a while, or with the process."""


@attrs.frozen(slots=True)
class _Failure:
    """What the text of an error of obstore says.

    Attributes:
        status: The status that the store answered with; 0 if it did not answer.
        code: What the store calls it; empty if it does not say.
        text: For people. It has neither headers nor the signed text of the request.
        is_sent: Whether the request may have reached the store.
    """

    status: int
    code: str
    text: str
    is_sent: bool = True

    @classmethod
    def read(cls, text: str) -> _Failure:
        head, _, details = text.partition(_DETAILS)
        at = f" at {place[1]}" if (place := _PLACE.search(head)) else ""
        found = _CODE.search(head)
        code = (found[1] or found[2] or "") if found else ""
        if (status := _STATUS.search(head)) is not None:
            said = _SAID.search(head)
            reasons = ": ".join(filter(None, (code, said[1] if said else "")))
            answer = f"{status[1]}{status[2].rstrip()}"
            return cls(int(status[1]), code, f"the store{at} answered {answer}{f' ({reasons})' if reasons else ''}")
        cause = _CAUSE.search(details)
        if _NOT_SENT in details:
            reason = f": {cause[1]}" if cause else ""
            return cls(0, code, f"no connection to the store{at}{reason}", is_sent=False)
        if _TIMED_OUT in details:
            return cls(0, code, f"the store{at} did not answer in time")
        return cls(0, code, " ".join(head.split()))

    @property
    def kind(self) -> type[LogStoreError]:
        """The error that it is here. What is not certain counts as unknown."""
        is_refusal = 400 <= self.status < 500 and self.status not in {408, 409, 429}
        if self.code in _FULL or self.status == 507 or (is_refusal and "quota" in self.text.lower()):
            return StoreFullError
        if self.code in _CREDENTIALS or self.status in {401, 403}:
            return StoreCredentialsError
        return UnknownOutcomeError if self.is_sent else StoreUnreachableError


def _is_bucket_missing(error: Exception) -> bool:
    """Whether all objects are missing. An object that is missing with its bucket does not count as deleted."""
    return _Failure.read(str(error)).code in _NO_BUCKET


def _mapped(what: str, key: str, request: Callable[[], _T]) -> _T:
    try:
        return request()
    except (BaseError, OSError) as error:
        failure = _Failure.read(str(error))
        kind = failure.kind
        if kind is UnknownOutcomeError and isinstance(error, PermissionDeniedError | UnauthenticatedError):
            kind = StoreCredentialsError
        raise kind(f"{what} of {key}: {failure.text[:_MOST_MESSAGE]}") from error
