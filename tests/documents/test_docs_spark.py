"""The commands and programs of the pages about Spark, word for word, on a machine with a history of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.documents.conftest import MakeMachine, typed
from tests.documents.pages import REPOSITORY, blocks_of
from tests.documents.playing import play, write_file
from tests.documents.test_docs_commands import IS_READY, SERVER

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(900)]

PAGES: Final = ("docs/spark.md", "docs/spark-exports.md", "docs/spark-streaming.md")
INSTALLED: Final = ("pip install '.[server,spark,java]'", "pip install '.[server,duckdb]'")
BRIDGE: Final = """
[[bridge]]
name = "plant"
topics = ["plant/#"]
sink = { type = "files", directory = "/srv/absent", format = "ndjson" }
"""
HISTORY: Final = (
    # The hosts of the pages' examples.
    "echo '127.0.0.1 journal journal-1' >> /etc/hosts",
    SERVER,
    IS_READY,
    "journal shard create plant/line-1 && seq 1000 | journal append plant/line-1",
    "journal shard create plant/1/temperature && seq 1000 | journal append plant/1/temperature",
    "journal shard convert plant/line-1",
    "journal-broker --config bridge.toml --anonymous &",
    "until mosquitto_pub -q 1 -t plant/boiler -m 21.5; do sleep 0.1; done",
)
# Programs of a page are those of one person in one session: one process, in their order.
BEFORE: Final = """
import duckdb
import polars
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
"""
# After each of them: what it has made gives records. A query is ended, so that the next one has the processor.
CHECKED: Final = """
for name in [each for each in ("records", "history", "everything") if each in globals()]:
    if not globals()[name].isStreaming:
        assert globals()[name].count() > 0, name
    del globals()[name]
if "query" in globals():
    query.processAllAvailable()
    query.stop()
    assert spark.read.parquet("/lake/plant").count() > 0
    del query
"""


@pytest.mark.parametrize("page", PAGES)
def test_a_page_about_spark_goes_as_it_is_written(page: str, installed_with_spark: MakeMachine, tmp_path: Path) -> None:
    """It starts Spark, for commands more than once, which takes half a minute and more."""
    blocks = blocks_of(REPOSITORY / page)
    programs = [block.text for block in blocks if block.language == "python" and not block.mark[0]]
    assert programs
    with installed_with_spark(tmp_path / "machine") as machine:
        write_file(machine, "bridge.toml", BRIDGE)
        for command in HISTORY:
            typed(machine, command)
        play(machine, blocks, already_done=INSTALLED, timeout_s=300)
        typed(machine, "rm -rf /lake && kill %?journal-spark; true")
        write_file(machine, "/tmp/program.py", BEFORE + "".join(program + CHECKED for program in programs))
        done = machine.run(f"PYTHONPATH={REPOSITORY} {REPOSITORY}/.venv/bin/python /tmp/program.py", 300)
        assert done.status == 0, f"{machine.take_output()}\n{done.told[-6000:]}"
