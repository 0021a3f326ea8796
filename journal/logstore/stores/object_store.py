"""A log store in an object store: S3 and what speaks it, Google Cloud Storage, Azure Blob Storage. By obstore.

obstore has a loop of its own that repeats requests, also conditional ones, and hides what became of the first
attempt. It must be switched off: `open_s3` does so, and every store given to `ObjectLogStore` has to be made with
``retry_config={"max_retries": 0}``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, S3Store

from journal.logstore.errors import LogStoreError, StoreCredentialsError, StoreUnreachableError, UnknownOutcomeError
from journal.logstore.keys import check_key, folder_of
from journal.logstore.store import Created

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Config

_T = TypeVar("_T")

TIMEOUT_S: Final = 10.0
_CREDENTIALS: Final = (
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "AccessDenied",
    "ExpiredToken",
    "AuthorizationHeaderMalformed",
)
# No request left this machine: the connection was never made.
_NOT_SENT: Final = ("tcp connect error", "dns error", "Connection refused")
_MOST_MESSAGE: Final = 500


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
            except FileNotFoundError:
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
            except FileNotFoundError:
                return

        _mapped("delete", key, remove)

    def close(self) -> None:
        """Connections are closed when they have been idle for a while, or with the process."""


def _mapped(what: str, key: str, request: Callable[[], _T]) -> _T:
    try:
        return request()
    except (BaseError, OSError) as error:
        raise _error_of(error)(f"{what} of {key}: {_message(error)}") from error


def _error_of(error: Exception) -> type[LogStoreError]:
    text = str(error)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or any(code in text for code in _CREDENTIALS):
        return StoreCredentialsError
    if any(sign in text for sign in _NOT_SENT):
        return StoreUnreachableError
    # The status is only part of a text that is not for programs: what is not certain counts as unknown.
    return UnknownOutcomeError


def _message(error: Exception) -> str:
    return " ".join(str(error).split())[:_MOST_MESSAGE]
