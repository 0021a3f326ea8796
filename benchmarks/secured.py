"""The cost of security: the load of `benchmarks.ours` over TLS, and on a server with authentication and quotas.

Certificates, users and rules are made here, in the directory of the run.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

import attrs

from benchmarks import ours, processes
from benchmarks.runs import Measurement, UnavailableError
from benchmarks.stage import Stage, start_journal
from benchmarks.wire import Wire
from journal.access.users import PasswordHash, write_user

USER: Final = "bench"
PASSWORD: Final = "known-to-the-benchmark"
OTHERS: Final = 50
"""Number of other users with rules and quotas of their own, which come before those of the benchmark."""


@attrs.frozen(slots=True)
class _Secured:
    """A server, and how to connect to it."""

    server: processes.Server
    tls: ssl.SSLContext | None = None
    credentials: dict[str, str] | None = None

    def connect(self) -> Wire:
        return Wire(self.server.address, tls=self.tls, credentials=self.credentials)

    def stop(self) -> None:
        self.server.stop()


def measurements(stage: Stage) -> list[Measurement]:
    """All measurements of secured servers."""
    encrypted = ours.Generator(stage, lambda: _encrypted(stage).connect())
    guarded = ours.Generator(stage, lambda: _guarded(stage).connect())
    return [
        Measurement(("batches.tls.encoded",), lambda t: {"batches.tls.encoded": encrypted.batches(ours.FILE, t)}),
        Measurement(("batches.guarded.encoded",), lambda t: {"batches.guarded.encoded": guarded.batches(ours.FILE, t)}),
        Measurement(("singles.guarded.encoded",), lambda t: {"singles.guarded.encoded": guarded.singles(t)}),
    ]


def _encrypted(stage: Stage) -> _Secured:
    """A server with a certificate that accepts only TLS."""

    def make() -> _Secured:
        try:
            import trustme
        except ModuleNotFoundError as error:
            raise UnavailableError("trustme is not installed") from error
        directory = _directory(stage, "encrypted")
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        files = {"certificate_file": directory / "certificate.pem", "key_file": directory / "key.pem"}
        files["certificate_file"].write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
        files["key_file"].write_bytes(certificate.private_key_pem.bytes())
        config = "\n[tls]\n" + "".join(f'{name} = "{path.resolve()}"\n' for name, path in files.items())
        context = ssl.create_default_context()
        authority.configure_trust(context)
        return _warm(_Secured(start_journal(directory / "data", directory / "log", config=config), tls=context))

    return stage.once("encrypted journal", make, _Secured.stop)


def _guarded(stage: Stage) -> _Secured:
    """A server with users, rules and quotas; the benchmark reaches none of the quotas."""

    def make() -> _Secured:
        directory = _directory(stage, "guarded")
        users = directory / "users"
        write_user(str(users), USER, PasswordHash.of(PASSWORD.encode()))
        config = f'\n[access]\nusers_file = "{users.resolve()}"\n'
        for number in range(OTHERS):
            config += _rule(f"user-{number}", f"of/user-{number}/#") + _quota(f"user-{number}", f"of/user-{number}/#")
        config += _rule(USER, "bench/#") + _quota(USER, "bench/#") + _quota("*", "#")
        server = start_journal(directory / "data", directory / "log", config=config)
        return _warm(_Secured(server, credentials={"user": USER, "password": PASSWORD}))

    return stage.once("guarded journal", make, _Secured.stop)


def _rule(user: str, topics: str) -> str:
    return f'[[access.rules]]\npermission = "allow"\nprincipal = "{user}"\ntopics = ["{topics}"]\n'


def _quota(user: str, topics: str) -> str:
    # The memory of all principals together has a setting of its own.
    memory = "" if user == "*" else 'memory_bytes = "1 TiB"\n'
    return (
        f'[[quotas]]\nprincipal = "{user}"\ntopics = ["{topics}"]\nconnections = 1000\nrequests_per_s = 100_000_000\n'
        f'bytes_per_s = "100 GiB"\nstored_bytes = "1 TiB"\nshards = 100_000\n{memory}'
    )


def _directory(stage: Stage, name: str) -> Path:
    directory = stage.directory / name
    directory.mkdir(parents=True)
    return directory


def _warm(secured: _Secured) -> _Secured:
    try:
        ours.warm_up(secured.connect())
    except BaseException:
        secured.stop()
        raise
    return secured
