"""The address of a log store, as an operator writes it, and opening what it names.

====================================  ====================================================================
``s3://BUCKET/PREFIX``                S3 and what speaks it; ``AWS_*`` of the environment, or an instance role
``gs://BUCKET/PREFIX``                Google Cloud Storage; ``GOOGLE_*`` of the environment, or the platform's own
``az://CONTAINER/PREFIX``             Azure; ``AZURE_*`` of the environment, or the platform's own
``postgresql://HOST/DATABASE#NAME``   PostgreSQL; ``PGUSER``, ``PGPASSFILE`` and so on of the environment
``file:///DIRECTORY``                 a directory that all servers see, on one machine
====================================  ====================================================================

``?slots=4`` is how many slots of the log an owner writes at a time, and ``?interval=250ms`` the time between two slots
that are not full, at least. All other options are those of PostgreSQL.

No address has a secret in it, since others can see the command line, and addresses are logged.
"""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

import attrs

from journal.logstore.keys import check_key
from journal.logstore.store import LogStore
from shards.errors import InvalidRequestError

_SECRETS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "postgresql": "PGPASSFILE (or PGPASSWORD)",
}

_SECRET_NAMES: Final = {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
"""Parameters of PostgreSQL that are secret."""

DEFAULT_ROOT: Final = "journal"
"""What the keys of a store begin with if its address does not say."""

MOST_SLOTS: Final = 16
_SLOTS: Final = "slots"
MOST_INTERVAL_MS: Final = 10_000
_INTERVAL: Final = "interval"
_OWN: Final = (_SLOTS, _INTERVAL)


@attrs.frozen(slots=True)
class StoreAddress:
    """The address of a log store.

    Attributes:
        text: As it was written; it has no secret in it.
        root: What the keys of the store begin with.
        slots: How many slots of the log an owner writes at a time; None if the address does not say.
        interval_s: Time between two slots that are not full, at least, in seconds; None if the address does not say.
    """

    text: str
    root: str
    slots: int | None
    interval_s: float | None
    _parts: SplitResult = attrs.field(repr=False)

    @classmethod
    def parse(cls, text: str) -> StoreAddress:
        """Parse an address.

        Raises:
            InvalidRequestError: It is none, or has a password in it. The message does not repeat the password.
        """
        try:
            parts = urlsplit(text)
            has_password = parts.password is not None
        except ValueError as error:
            raise InvalidRequestError(f"the address of the log store cannot be read: {error}") from error
        options = parse_qsl(parts.query, keep_blank_values=True)
        slots = _slots_of([value for name, value in options if name == _SLOTS])
        interval_s = _interval_s_of([value for name, value in options if name == _INTERVAL])
        if slots is not None or interval_s is not None:
            options = [option for option in options if option[0] not in _OWN]
            parts = parts._replace(query=urlencode(options))
        names = {name.lower() for name, _ in options}
        if parts.scheme != "postgresql" and names:
            raise InvalidRequestError(
                f"the address of the log store has a part behind '?' that is neither {_SLOTS}= nor {_INTERVAL}=, which "
                "only postgresql:// may have; credentials and the like are read from the environment"
            )
        if has_password or names & _SECRET_NAMES:
            raise InvalidRequestError(
                "the address of the log store has a password in it, which others could see; leave it out, and set "
                f"{_SECRETS.get(parts.scheme, 'the credentials')} in the environment"
            )
        if parts.scheme not in _OPENERS:
            raise InvalidRequestError(
                f"the address of the log store begins with {text.split(':', maxsplit=1)[0][:20]!r}; allowed are "
                f"{', '.join(f'{scheme}://' for scheme in _OPENERS)}"
            )
        if parts.scheme == "file":
            if parts.netloc or not parts.path.startswith("/") or parts.path == "/":
                raise InvalidRequestError(f"{text}: a directory is written as file:///absolute/path")
            root = DEFAULT_ROOT
        elif not parts.netloc and parts.scheme != "postgresql":
            raise InvalidRequestError(
                f"{text}: the name of the bucket is missing, as in {parts.scheme}://BUCKET/PREFIX"
            )
        elif parts.scheme == "postgresql":
            root = parts.fragment or DEFAULT_ROOT
        else:
            root = parts.path.strip("/") or DEFAULT_ROOT
        try:
            check_key(root)
        except ValueError as error:
            raise InvalidRequestError(f"{text}: {error}") from error
        return cls(text, root, slots, interval_s, parts)

    @property
    def place(self) -> str:
        """What it names, without how that is used."""
        return urlunsplit(self._parts)

    def open(self) -> LogStore:
        """Open it. For most stores nothing is sent before the first request.

        Raises:
            InvalidRequestError: The libraries that it needs are not installed.
            LogStoreError: It cannot be used.
        """
        try:
            return _OPENERS[self._parts.scheme](self._parts)
        except ImportError as error:
            raise InvalidRequestError(
                f"{self.text} needs {error.name}, which is not installed; it comes with the extra 'logstore'"
            ) from error


def _slots_of(values: list[str]) -> int | None:
    if not values:
        return None
    if len(values) > 1 or not values[0].isdecimal() or not 1 <= int(values[0]) <= MOST_SLOTS:
        raise InvalidRequestError(
            f"{_SLOTS}={values[-1][:20]} in the address of the log store: how many slots are written at a time is one "
            f"number from 1 to {MOST_SLOTS}"
        )
    return int(values[0])


def _interval_s_of(values: list[str]) -> float | None:
    if not values:
        return None
    number = values[0].removesuffix("ms")
    if len(values) > 1 or number == values[0] or not number.isdecimal() or int(number) > MOST_INTERVAL_MS:
        raise InvalidRequestError(
            f"{_INTERVAL}={values[-1][:20]} in the address of the log store: the time between two slots is one "
            f"number of milliseconds up to {MOST_INTERVAL_MS}, as in {_INTERVAL}=250ms"
        )
    return int(number) / 1000


def _open_s3(parts: SplitResult) -> LogStore:
    from journal.logstore.stores.object_store import open_s3

    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return open_s3(parts.netloc, os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT"), region=region)


def _open_gcs(parts: SplitResult) -> LogStore:
    from journal.logstore.stores.object_store import open_gcs

    return open_gcs(parts.netloc)


def _open_azure(parts: SplitResult) -> LogStore:
    from journal.logstore.stores.object_store import open_azure

    return open_azure(parts.netloc)


def _open_postgresql(parts: SplitResult) -> LogStore:
    from journal.logstore.stores.postgresql import PostgresqlLogStore

    return PostgresqlLogStore(urlunsplit(parts._replace(fragment="")))


def _open_directory(parts: SplitResult) -> LogStore:
    from journal.logstore.stores.directory import DirectoryLogStore

    return DirectoryLogStore(parts.path)


_OPENERS: Final = {
    "s3": _open_s3,
    "gs": _open_gcs,
    "az": _open_azure,
    "postgresql": _open_postgresql,
    "file": _open_directory,
}
