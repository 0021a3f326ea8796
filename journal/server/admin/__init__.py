"""Administration over HTTP, `/api/v1/...`: JSON in, JSON out, described by an OpenAPI document of its own."""

from journal.server.admin.api import Administration, admin_routes
from journal.server.admin.openapi import openapi_document

__all__ = ["Administration", "admin_routes", "openapi_document"]
