"""What holds for every package: layer contracts, narrow doors, no circles of imports, one error by each name."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, Final

import grimp
import pytest

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("shards", "command_line", "journal", "broker_adapter", "spark_export")
ALL: Final = (*PRODUCT, "demo", "benchmarks", "tests")
MOST_NAMES: Final = 12


def packages(*roots: str) -> list[str]:
    found = (path.parent for root in roots for path in (ROOT / root).rglob("__init__.py"))
    return sorted(".".join(folder.relative_to(ROOT).parts) for folder in found)


def tree_of(package: str) -> ast.Module:
    return ast.parse(ROOT.joinpath(*package.split("."), "__init__.py").read_text())


def door_of(package: str) -> list[str] | None:
    """What ``__all__`` lists."""
    for node in tree_of(package).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and target.id == "__all__":
            assert node.value is not None
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def contracts() -> list[dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return found


@cache
def imports() -> grimp.ImportGraph:
    """Modules and what they import, at any place of a module; imports for the type checker alone do not count."""
    return grimp.build_graph(*ALL, exclude_type_checking_imports=True, cache_dir=None)


def error_classes() -> Iterator[tuple[str, str]]:
    for path in (path for root in PRODUCT for path in sorted((ROOT / root).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Error"):
                yield node.name, str(path.relative_to(ROOT))


def test_every_package_is_under_an_exhaustive_layer_contract() -> None:
    held = {
        container
        for contract in contracts()
        if contract["type"] == "layers" and contract.get("exhaustive")
        for container in contract.get("containers", [])
    }
    folders = {package for package in packages(*PRODUCT, "demo", "benchmarks") if imports().find_children(package)}
    assert folders - held == set(), "a folder without a contract: name its layers in pyproject.toml"


def test_every_folder_with_modules_is_a_package() -> None:
    """What is no package is in no graph of imports, and under no contract."""
    modules = (path for root in ALL for path in (ROOT / root).rglob("*.py"))
    folders = {path.parent for path in modules if "node_modules" not in path.parts}
    assert {folder for folder in folders if not (folder / "__init__.py").exists()} == set()


def test_no_module_imports_itself_by_a_detour() -> None:
    graph = imports()
    TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}).prepare()


def test_siblings_import_siblings_and_not_the_door_of_their_package() -> None:
    graph = imports()
    # The process that converts segments has to find where the package lies.
    allowed = {("journal.engine.workers.process", "journal")}
    through_doors = {
        (module, imported)
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
        if module.startswith(f"{imported}.") and not module.startswith("tests.")
    }
    assert through_doors <= allowed


@pytest.mark.parametrize("package", packages(*PRODUCT, "demo", "benchmarks"))
def test_a_package_says_what_it_has_and_what_it_shows(package: str) -> None:
    assert ast.get_docstring(tree_of(package))
    names = door_of(package)
    assert names is not None, "no __all__: an empty list says that its modules are imported one by one"
    assert len(names) <= MOST_NAMES
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("package", [package for package in packages(*PRODUCT) if door_of(package) == []])
def test_what_shows_nothing_imports_nothing(package: str) -> None:
    assert imports().find_modules_directly_imported_by(package) == set()


def test_no_two_errors_have_one_name() -> None:
    places = defaultdict(set)
    for name, path in error_classes():
        places[name].add(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
