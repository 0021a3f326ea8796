"""Three brokers that all tests of real clients share; tests that kill one start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from tests.mqtt.clients.paho_client import V5, V311
from tests.mqtt.cluster.processes import Cluster, running_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("clients")) as found:
        yield found


@pytest.fixture(params=[V311, V5], ids=["3.1.1", "5"])
def version(request: pytest.FixtureRequest) -> MQTTProtocolVersion:
    found: MQTTProtocolVersion = request.param
    return found
