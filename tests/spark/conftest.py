"""One Spark for the whole test run: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_export.session import end_session, make_session
from tests.spark.postgresql import driver_path
from tests.spark.shared_archive import link_archive

HERE = Path(__file__).parent
TIMEOUT_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test pays for the start, and the first data source of a kind for a Python process."""
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow("runs Spark"))


@pytest.fixture(autouse=True)
def cache_of_the_test(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands keep for later goes where no user and no other test finds it."""
    cache = tmp_path_factory.mktemp("cache")
    link_archive(cache)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two tasks at a time, few shuffle partitions, a small heap. Tests leave no view and no setting behind.

    `JOURNAL_TEST_CLASSPATH` names Java archives: drivers of databases that the tests are to use as well. Without it
    PostgreSQL's is taken where it is installed.
    """
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        # With less thorough compilation (tests/conftest.py) and this collector they take half the processor time.
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    }
    if drivers := driver_path():
        settings["spark.driver.extraClassPath"] = drivers
    session = make_session("tests", cores=2, memory="1g", extra=settings)
    yield session
    end_session(session)
