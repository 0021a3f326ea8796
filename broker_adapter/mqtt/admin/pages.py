"""All pages of the administration of brokers."""

from __future__ import annotations

from broker_adapter.mqtt.admin.administration import Administration
from broker_adapter.mqtt.admin.bans_pages import bans_pages
from broker_adapter.mqtt.admin.clients_pages import clients_pages
from broker_adapter.mqtt.admin.rules_pages import rules_pages
from journal.telemetry.http_pages import Page, Resource


def administration_pages(administration: Administration, max_bans: int, version: str) -> dict[str, Page | Resource]:
    """The pages, by path.

    Args:
        administration: Authenticates the askers.
        max_bans: How many bans there may be.
        version: Name and version of the program.
    """
    return {
        **rules_pages(administration, version),
        **clients_pages(administration),
        **bans_pages(administration, max_bans),
    }
