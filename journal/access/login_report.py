"""What `journal config --check` and `journal-broker check` say about logins: what is configured and works."""

from __future__ import annotations

from journal.access.jwt_login import JwtSettings
from journal.access.login_methods import Credentials
from shards.quantities import counted


async def login_report(credentials: Credentials) -> list[str]:
    """Sentences about the login methods. Keys are fetched once; an address that does not answer is no error."""
    report = []
    if len(credentials.steps) > 1:
        report.append(f"Logins are decided in this order: {', '.join(step.kind for step in credentials.steps)}.")
    report += [f"{step.kind}: {counted(len(step.denied), 'denied user')}." for step in credentials.steps if step.denied]
    if credentials.jwt is not None:
        report += await _keys_report(credentials.jwt)
    if credentials.http is not None:
        settings = credentials.http
        report.append(
            f"http: {settings.shown_url} is asked, at most {settings.max_in_flight} times at once and for "
            f"{settings.timeout_s:g} s; without an answer: {settings.on_error}."
        )
    return report


async def _keys_report(settings: JwtSettings) -> list[str]:
    from journal.access.key_source import FetchError, fetch_keys, shown

    keys, where = settings.keys, "the file"
    if settings.address is not None:
        where = shown(settings.address.url)
        try:
            keys = await fetch_keys(settings.address, settings.tls)
        except FetchError as error:
            return [f"jwt: the keys at {where} cannot be fetched now: {error}. No token is accepted until they are."]
    assert keys is not None
    usable = f"jwt: {counted(len(keys), 'key')} of {where} can be used."
    return [usable, *(f"jwt: {reason}, and is not used." for reason in keys.unusable)]
