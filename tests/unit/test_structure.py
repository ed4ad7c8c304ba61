"""What imports what, and how long files are: the layout that README, "Layout", tells."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from plans.version import VERSION

ROOT = Path(__file__).parents[2]
OURS = ("facts", "releases", "locks", "plans", "operations", "deploys", "cli", "inventories")

MAY = {
    "facts": {"facts"},
    "releases": {"releases"},
    "locks": {"locks"},
    "plans": {"plans", "releases", "facts.records", "locks.records", "locks.references"},
    "operations": {"operations", "plans", "releases"},
    "deploys": {"deploys", "operations", "plans", "releases", "facts", "locks"},
    "cli": {"cli", "deploys", "operations", "plans", "releases", "facts", "locks"},
}
"""What of ours each folder may import: whole folders, or single modules."""

PURE = ("plans", "releases")
IMPURE = {
    "pyinfra", "requests", "huggingface_hub", "gevent", "socket", "subprocess", "urllib",
    "time", "random", "secrets", "uuid",
}  # fmt: skip

LONG = {
    # One decision each; read from top to bottom.
    "plans/hosts.py",
    "plans/gpus.py",
    "releases/table.py",
    "releases/tools/extract_flags.py",
}
"""Files over 400 lines: none may join them."""


def modules(folder: str) -> Iterator[Path]:
    """Give the Python files of a folder."""
    yield from sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Give each import of a file: the module, and the module with the name that is taken of it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or "tests" in path.parts, f"{path}: a relative import"
            for alias in node.names:
                yield node.module or "", f"{node.module}.{alias.name}"


@pytest.mark.parametrize("folder", MAY)
def test_a_folder_imports_only_what_it_may(folder: str) -> None:
    bad = []
    for path in modules(folder):
        for module, taken in imports(path):
            if module.split(".")[0] not in OURS:
                continue
            if not any(
                name == may or name.startswith(f"{may}.")
                for may in MAY[folder]
                for name in (module, taken)
            ):
                bad.append(f"{path.relative_to(ROOT)}: {taken}")
    assert bad == []


def test_pyinfra_s_own_command_line_is_imported_nowhere() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {module}"
        for folder in OURS
        for path in modules(folder)
        for module, _ in imports(path)
        if module.split(".")[0] == "pyinfra_cli"
    ]
    assert found == []


@pytest.mark.parametrize("folder", PURE)
def test_what_decides_asks_no_network_and_no_clock(folder: str) -> None:
    bad = []
    for path in modules(folder):
        if "tools" in path.parts:
            continue  # run by hand, to make the data of a new release
        for module, taken in imports(path):
            if module.split(".")[0] in IMPURE or taken in ("os.environ", "os.getenv"):
                bad.append(f"{path.relative_to(ROOT)}: {taken}")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("now", "today", "utcnow"):
                bad.append(f"{path.relative_to(ROOT)}: {node.attr}")
    assert bad == []


def test_the_records_that_plans_import_are_pure_too() -> None:
    for name in (
        "facts/records.py", "facts/door.py", "facts/unknown.py", "locks/records.py", "locks/references.py",
    ):  # fmt: skip
        there = {module.split(".")[0] for module, _ in imports(ROOT / name)}
        assert not there & IMPURE, name
        assert all(
            module in ("facts.door", "facts.unknown", "locks.records", "locks.references")
            for module, _ in imports(ROOT / name)
            if module.split(".")[0] in OURS
        )


def test_the_version_stands_in_two_places_and_is_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == VERSION
    assert f"## {VERSION}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_no_file_is_longer_than_a_reader_likes() -> None:
    long = {
        str(path.relative_to(ROOT))
        for folder in OURS
        for path in modules(folder)
        if len(path.read_text(encoding="utf-8").splitlines()) > 400
    }
    assert long <= LONG


def test_every_folder_of_ours_is_in_the_wheel_and_checked_for_types() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert set(included) == {*OURS, "templates"}
    assert set(project["tool"]["mypy"]["files"]) == {*OURS, "tests", "benchmarks"} - {"inventories"}
