"""What a bundle's manifest says of the environments in it, from what the node said."""

from __future__ import annotations

from dataclasses import replace

from plans import paths
from plans.bundle import Manifest
from plans.bundle_scripts import EnvironmentToBundle
from plans.bundling import Gathered, Ingredients, manifest_of
from plans.wheel.tools import uv_path
from tests.unit.bundles import environment_to_bundle, member
from tests.unit.deployments import TIME, lock

UV = (uv_path(), b"uv")
WHEEL = (f"{paths.BUNDLE_WORK}/wheels/idna-3.15-py3-none-any.whl", b"idna")


def with_key(key: str) -> EnvironmentToBundle:
    """Return an environment of its own."""
    one = environment_to_bundle()
    return EnvironmentToBundle(replace(one.planned, key=key), one.lock)


def python(version: str) -> tuple[str, bytes]:
    """Return the archive of a Python on the node, and its content."""
    name = f"cpython-{version}-linux-x86_64-gnu"
    return f"{paths.BUNDLE_WORK}/python-{name}.tar", version.encode()


def said(*files: tuple[str, bytes]) -> list[str]:
    """Return the lines in which the node says files."""
    members = [(path, member(content)) for path, content in files]
    return [f"@file {one.sha256} {one.size} - {path}" for path, one in members]


def made(said_of: dict[str, list[str]]) -> Manifest:
    """Return the manifest of environments, by key and what the node printed for each."""
    gathered = Gathered()
    for key, lines in said_of.items():
        gathered.read(lines, key)
    made_of = Ingredients((), (), (), tuple(with_key(key) for key in said_of), "x86_64")
    return manifest_of(made_of, gathered, lock(), node="maker", now=TIME)


def test_each_environment_of_a_bundle_has_the_python_that_it_runs_on() -> None:
    found = made(
        {
            "1" * 16: said(WHEEL, UV, python("3.12.11")),
            "2" * 16: said(WHEEL, UV, python("3.13.5")),
            "3" * 16: said(WHEEL, UV),
        }
    )
    first, second, third = found.environments
    assert first.python is not None
    assert first.python.name == "cpython-3.12.11-linux-x86_64-gnu"
    assert first.python.content == member(b"3.12.11")
    assert second.python is not None
    assert second.python.name == "cpython-3.13.5-linux-x86_64-gnu"
    # On the distribution's Python: the other node has that, or refuses.
    assert third.python is None
