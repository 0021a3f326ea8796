"""Administration over HTTP, `/api/v1/...`: requests and answers in JSON, described by an OpenAPI document."""

from journal.server.admin.api import Administration, admin_routes
from journal.server.admin.openapi import openapi_document

__all__ = ["Administration", "admin_routes", "openapi_document"]
