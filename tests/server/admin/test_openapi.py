"""The OpenAPI document: it says what the routes do, and what it says holds for whatever a fuzzer thinks of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import msgspec
import pytest
import schemathesis
import trio
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CheckFunction
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from journal.server.admin import openapi_document
from journal.server.admin.endpoints import ENDPOINTS, PREFIX
from journal.server.admin.forms import Problem
from tests.patience import PATIENCE_S
from tests.server.json_protocol.talking import talking
from tests.server.serving import Served, serving

CHECKS: list[CheckFunction] = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
"""Not `positive_data_acceptance`: which names are topic names is no JSON schema's to say."""


FEW = settings(
    max_examples=25,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def document() -> dict[str, Any]:
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(openapi_document("1")))
    return made


def test_the_document_is_what_the_server_gives_and_names_each_operation_once() -> None:
    described = [
        (method.upper(), path, operation["operationId"])
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
    ]
    assert sorted(described) == sorted((each.method, PREFIX + each.path, each.name) for each in ENDPOINTS)
    assert len({name for _, _, name in described}) == len(described)


async def test_the_routes_are_those_of_the_document_and_no_others(tmp_path: Path) -> None:
    methods = ("GET", "POST", "PUT", "PATCH", "DELETE")
    async with serving(tmp_path) as served:
        base = f"http://127.0.0.1:{served.ports['http']}"
        async with httpx.AsyncClient(base_url=base, timeout=PATIENCE_S) as client:
            given = (await client.get("/api/v1/openapi.json")).json()
            assert {**given, "info": {}} == {**document(), "info": {}}
            for path, operations in given["paths"].items():
                for method in methods:
                    status = (await client.request(method, path)).status_code
                    assert (status == 405) == (method.lower() not in operations), (method, path)
                    assert status != 404, (method, path)


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    given = document()
    schemas = given["components"]["schemas"]
    for name in re.findall(r"#/components/schemas/(\w+)", str(given)):
        assert name in schemas
    for schema in schemas.values():
        jsonschema_rs.meta.validate(schema)


def test_every_parameter_and_field_that_is_not_plain_is_explained() -> None:
    for path, methods in document()["paths"].items():
        for operation in methods.values():
            assert operation["summary"]
            for parameter in operation["parameters"]:
                assert parameter["description"] != parameter["name"], (path, parameter)


def test_every_refusal_is_a_problem() -> None:
    for path, methods in document()["paths"].items():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    schema = response["content"]["application/problem+json"]["schema"]
                    assert schema == {"$ref": f"#/components/schemas/{Problem.__name__}"}, path


@pytest.mark.slow("a fuzzer sends requests")
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
async def test_what_a_fuzzer_sends_is_answered_as_the_document_says(tmp_path: Path, endpoint: Any) -> None:
    async with serving(tmp_path) as served:
        async with talking(served) as talker:
            # Something for the fuzzer to find.
            for name in ("a", "0"):
                await talker.append(name, "x", create={})
                await served.engine.commit_cursor(name, "0", 1, None)
        # The WebSocket is closed: its pings take random numbers, of which Hypothesis complains in the other thread.
        await trio.to_thread.run_sync(fuzz, served, endpoint)
        assert not served.unexpected
        assert "storage_failed" not in served.server.statistics.errors


def fuzz(served: Served, endpoint: Any) -> None:
    schema = schemathesis.openapi.from_dict(document())
    schema.config.update(base_url=f"http://127.0.0.1:{served.ports['http']}")
    operation = schema[PREFIX + endpoint.path][endpoint.method]

    @FEW
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE))
    def positive(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    @FEW
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))
    def negative(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    positive()
    if endpoint.body is not None or msgspec.structs.fields(endpoint.query):
        negative()
