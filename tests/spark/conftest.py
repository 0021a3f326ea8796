"""One Spark for the whole test run: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_export.session import end_session, make_session

HERE = Path(__file__).parent
TIMEOUT_S = 180


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test pays for the start, and the first data source of a kind for a Python process."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two tasks at a time, few shuffle partitions, a small heap. Tests leave no view and no setting behind."""
    session = make_session(
        "tests",
        cores=2,
        memory="1g",
        extra={"spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2"},
    )
    yield session
    end_session(session)
