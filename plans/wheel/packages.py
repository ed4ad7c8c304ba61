"""What a wheel runtime needs of the distribution, and the packages that bring it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from facts.records import Survey, known
from plans.findings import Findings
from plans.wheel.compilers import compiler_of, cuda_of
from plans.wheel.locks import Requirements
from releases.yaml_text import read_yaml


@cache
def package_data() -> Mapping[str, Any]:
    """Return ``plans/data/packages.yaml``."""
    path = Path(__file__).parents[1] / "data" / "packages.yaml"
    data: Mapping[str, Any] = read_yaml(path.read_text(encoding="utf-8"))
    return data


def manager_of(survey: Survey) -> str | None:
    """Return a node's package manager, of those that are known: ``apt-get``."""
    path = survey.toolchain.package_manager
    name = path.rpartition("/")[2] if known(path) else None
    return name if name in package_data()["managers"] else None


def python_packages(survey: Survey, minor: str) -> tuple[str, ...]:
    """Return the packages of the distribution's Python and its headers; none: no such manager."""
    manager = manager_of(survey)
    if manager is None:
        return ()
    names = package_data()["managers"][manager]["python"]
    return tuple(name.format(minor=minor) for name in names)


def missing_packages(
    service: str, requirements: Requirements, survey: Survey, found: Findings
) -> dict[str, str]:
    """Return the packages to install, each with the reason; where nothing can, it is refused.

    A compiler that is there and that this CUDA does not take is refused too.
    """
    lock, cuda = requirements.lock, cuda_of(requirements.lock)
    missing = {
        need["kind"]: need
        for need in package_data()["needs"]
        if lock.package(need["package"]) is not None
    }
    if known(survey.toolchain.libnuma):
        missing.pop("numa", None)
    if "compiler" in missing and cuda is not None:
        compiler = compiler_of(survey, cuda, service)
        found.refusals += compiler.refusals
        if not compiler.install:
            del missing["compiler"]
    manager = manager_of(survey)
    if missing and manager is None:
        found.refuse(
            "PACKAGE_MANAGER_MISSING",
            service,
            f"{' and '.join(need['what'] for need in missing.values())} missing, and no package "
            f"manager that the toolkit knows ({survey.toolchain.package_manager})",
            "; ".join(f"{need['what']}: {need['why']}" for need in missing.values()),
            "install a C++ compiler (c++ and gcc in /usr/bin) and libnuma.so.1 by hand, then plan again",
        )
    if manager is None:
        return {}
    names = package_data()["managers"][manager]
    return {names[kind]: need["why"] for kind, need in missing.items()}
