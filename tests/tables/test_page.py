"""The example of docs/tables.md, word for word but for addresses and directories, and `conf/tables.toml`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_export.tables.config_file import load_tables
from spark_export.tables.declaration import TableDeclaration
from tests.documents.pages import REPOSITORY, blocks_of
from tests.faults.processes import running
from tests.patience import PATIENCE_S

PAGE = REPOSITORY / "docs" / "tables.md"


def test_the_shipped_file_shows_every_setting_with_its_default(tmp_path: Path) -> None:
    text = (REPOSITORY / "conf" / "tables.toml").read_text()
    [shipped] = load_tables(REPOSITORY / "conf" / "tables.toml").tables
    needed = {"name": shipped.name, "directory": shipped.directory, "topics": shipped.topics}
    assert shipped == TableDeclaration(**needed, fields=shipped.fields, types=shipped.types)
    # Every line that is commented out is a setting, too.
    every = text.replace("\n# server =", "\nserver =").replace("\n# shards =", "\nshards =")
    assert every.count("\n# s") == text.count("\n# s") - 2
    (tmp_path / "tables.toml").write_text(every)
    [table] = load_tables(tmp_path / "tables.toml").tables
    assert table.shards == ("folded/#",)


@pytest.mark.slow("starts a server and the commands of the page as processes")
def test_the_example_goes_as_it_is_written(tmp_path: Path) -> None:
    blocks = blocks_of(PAGE)
    [declaration] = [block.text for block in blocks if block.language == "toml"]
    [commands] = [block for block in blocks if block.language == "console"]
    [program] = [block.text for block in blocks if block.language == "python"]
    with running(tmp_path / "data") as server:
        address = f"127.0.0.1:{server.ports['tcp']}"

        def here(text: str) -> str:
            return text.replace("127.0.0.1:7420", address).replace("/lake", str(tmp_path / "lake"))

        (tmp_path / "tables.toml").write_text(here(declaration))
        programs = Path(sys.executable).parent
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "JOURNAL_SERVER": address}

        def run(command: str) -> str:
            done = subprocess.run(
                command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        for step in commands.steps():
            told = run(step.command)
            if step.shown:
                assert told.splitlines() == list(step.shown)
        assert told.startswith("readings: batch 1 added 4 records (")
        assert told.endswith("/s), 1 with a problem, up to date\n")
        (tmp_path / "program.py").write_text(here(program))
        told = run(f"{sys.executable} program.py")
        assert told.count("22.5") == 2
