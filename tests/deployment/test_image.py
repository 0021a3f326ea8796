"""The container image, as far as it can be judged without a container: what goes in, who runs it, and the wheel."""

from __future__ import annotations

import configparser
import contextlib
import email
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from journal.access.users import PasswordHash, write_user
from journal.cli.main import run
from journal.settings.server import ServerConfig
from tests.faults.processes import running

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = re.sub(r"\\\n", "", (REPOSITORY / "Dockerfile").read_text())
SETTINGS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
WHEEL = SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]
PACKAGES: list[str] = WHEEL["packages"]
SHARED: list[str] = list(WHEEL["shared-data"])


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.+)$", DOCKERFILE, re.MULTILINE)


def test_everything_that_is_copied_is_there() -> None:
    sources = [source for line in instructions("COPY") if "--from" not in line for source in line.split()[:-1]]
    assert len(sources) > len(PACKAGES)
    for source in sources:
        assert (REPOSITORY / source).exists(), source


def test_nothing_runs_as_root_and_the_data_is_its_own() -> None:
    last_stage = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]
    assert re.search(r"^USER journal$", last_stage, re.MULTILINE)
    assert last_stage.index("USER journal") < last_stage.index("ENTRYPOINT")
    assert "--owner journal --group journal /data" in last_stage
    assert re.search(r"^VOLUME /data$", last_stage, re.MULTILINE)


def test_its_user_has_no_shell_and_no_other_can_enter_its_directories() -> None:
    last_stage = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]
    assert re.search(r"useradd .*--shell /usr/sbin/nologin journal", last_stage)
    assert "--mode 0700 --owner journal --group journal /data /etc/journal" in last_stage


def test_its_base_is_one_exact_version() -> None:
    (base,) = {line.split()[0] for line in instructions("FROM")}
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+@sha256:[0-9a-f]{64}", base)


@pytest.mark.slow("starts the program several times")
def test_a_container_whose_port_is_published_needs_users(tmp_path: Path) -> None:
    """The arguments that the image has of itself, with a file of the test in place of that in /etc/journal."""
    (arguments,) = instructions("CMD")
    users = tmp_path / "users"
    given = json.loads(arguments.replace("/etc/journal/users", str(users)).replace("0.0.0.0:7420", "0.0.0.0:0"))
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        assert run(["serve", "--data", str(tmp_path / "data"), *given]) == 78
    assert f"`journal passwd {users} USER` creates it" in errors.getvalue()
    # Users are all that it lacks.
    write_user(str(users), "broker", PasswordHash.of(b"secret"))
    assert given == ["--listen", "0.0.0.0:0", "--set", f"access.users_file={users}"]
    with running(tmp_path / "data", "listen.tcp=0.0.0.0:0", f"access.users_file={users}") as server:
        assert server.http("/livez")[0] == 200
        assert server.http("/api/v1/shards")[0] == 401


def test_the_compose_file_runs_it_with_as_little_as_the_units() -> None:
    text = (REPOSITORY / "conf" / "compose.yaml").read_text()
    for line in ("read_only: true", "- ALL", "- no-new-privileges:true", "mem_limit: 4g", "pids_limit: 512"):
        assert re.search(rf"^ +{line}$", text, re.MULTILINE), line
    assert "privileged: true" not in text
    assert "allow_insecure" not in text
    mounts = set(re.findall(r"^ +- \w+:(/\S+)$", text, re.MULTILINE))
    assert mounts == {"/data", "/etc/journal"}


def test_only_what_was_installed_with_hashes_gets_into_the_image() -> None:
    assert instructions("COPY")[-1] == "--from=build /opt/journal /opt/journal"
    for command in re.findall(r"(?:pip install|pip sync)[^&\n]*", DOCKERFILE):
        assert "--require-hashes" in command or ("--no-deps" in command and "dist/*.whl" in command), command


def test_the_health_check_asks_where_the_server_listens() -> None:
    (check,) = instructions("HEALTHCHECK")
    assert f"http://{ServerConfig().listen.http}/livez" in check
    (ports,) = instructions("EXPOSE")
    listen = ServerConfig().listen
    assert {listen.tcp.rpartition(":")[2], listen.http.rpartition(":")[2]} <= set(ports.split())


def test_it_is_stopped_as_the_server_expects() -> None:
    assert instructions("STOPSIGNAL") == ["SIGTERM"]
    assert instructions("ENTRYPOINT")[0].startswith("[")  # a shell in between would not pass the signal on


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the image's first stage builds, by the same command."""
    place = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place)],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        timeout=60,
    )
    (built,) = place.glob("*.whl")
    return built


def tracked(*paths: str) -> set[str]:
    # Also where the checkout is another user's than who runs the tests.
    command = ["git", "-c", f"safe.directory={REPOSITORY}", "ls-files", *paths]
    return set(subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.splitlines())


def test_everything_that_the_wheel_is_made_of_goes_into_the_build() -> None:
    copied = {source.rstrip("/") for line in instructions("COPY") for source in line.split()[:-1]}
    taken_in = set((REPOSITORY / ".dockerignore").read_text().splitlines())
    for source in [*PACKAGES, "pyspark_journal.py", *SHARED]:
        assert source in copied, source
        assert f"!{source}" in taken_in, source


def test_the_wheel_has_every_module_and_shipped_file_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    shared = re.compile(r"journal_engine-[^/]+\.data/data/share/journal-engine/")
    modules = {name for name in names if not shared.match(name)}
    built = {name for name in modules if name.endswith(".so")}
    assert modules - built == tracked(*PACKAGES, "pyspark_journal.py")
    assert {shared.sub("", name) for name in names - modules} == tracked(*SHARED)
    packages = {str(Path(name).parent) for name in names if name.endswith("/__init__.py")}
    assert {"broker_adapter/mqtt_codec", "broker_adapter/sinks", "broker_adapter/bridge", "journal/backup"} <= packages


def test_the_wheel_has_the_compiled_loops_and_says_what_it_runs_on(wheel: Path) -> None:
    """If they could be built: then they are in the checkout as well."""
    module = f"shards/compiled/_loops{sysconfig.get_config_var('EXT_SUFFIX')}"
    with zipfile.ZipFile(wheel) as archive:
        built = [name for name in archive.namelist() if name.endswith(".so")]
    tag = wheel.stem.partition("-py3-none-")[2]
    assert (built, tag) == (([module], "") if (REPOSITORY / module).exists() else ([], "any"))


def test_the_image_has_the_compiled_loops() -> None:
    """The first stage has a compiler, and ends with an error if the loops were not built."""
    assert any("apt-get install" in line and " gcc " in line for line in instructions("RUN"))
    (build,) = [line for line in instructions("RUN") if "hatchling build" in line]
    assert re.search(r"/opt/journal/bin/python -c 'import shards\.compiled\._loops'$", build)
    assert "hatch_build.py" in {source for line in instructions("COPY") for source in line.split()[:-1]}
    assert "!hatch_build.py" in (REPOSITORY / ".dockerignore").read_text().splitlines()


def test_the_entry_points_of_the_wheel_are_found(wheel: Path, tmp_path: Path) -> None:
    """Unpacked somewhere else, each one is imported; nothing of this working directory is in reach."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (metadata,) = tmp_path.glob("*.dist-info")
    points = configparser.ConfigParser()
    points.read(metadata / "entry_points.txt")
    targets = [target for section in points.sections() for _, target in points.items(section)]
    assert len(targets) >= 9
    program = (
        "import importlib, sys\n"
        "for target in sys.argv[1:]:\n"
        "    module, _, name = target.partition(':')\n"
        "    found = importlib.import_module(module)\n"
        "    assert found.__file__.startswith(sys.path[0]), found.__file__\n"
        "    getattr(found, name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[0] = {str(tmp_path)!r}\n{program}", *targets],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = email.message_from_string((metadata / "METADATA").read_text())
    assert told["Name"] == SETTINGS["project"]["name"]
    assert (metadata / "licenses" / "LICENSE").exists()
