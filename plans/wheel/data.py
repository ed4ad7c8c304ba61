"""What ``plans/data/wheel.yaml`` says: what the wheel runtime needs of a host, and its code."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from releases.yaml_text import read_yaml

Family = Literal["apt", "dnf"]
Need = Literal["compiler", "numa"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Sourced(_Data):
    source: str = Field(min_length=10)
    basis: Literal["seen", "inferred"]


class PackageCode(_Sourced):
    """What one package has machine code for, by CPU architecture, or from which capability on."""

    package: str
    capabilities: Mapping[str, tuple[str, ...]] = {}
    at_least: str | None = None


class Versions(_Data):
    """Major versions, both ends included."""

    least: int
    newest: int


class Compilers(_Sourced):
    """The compilers that nvcc of one CUDA release takes."""

    cuda: str
    gcc: Versions


class HostNeeds(_Data):
    """The whole file."""

    code: tuple[PackageCode, ...]
    compilers: tuple[Compilers, ...]
    packages: Mapping[Family, Mapping[Need, str]]
    packages_source: str
    passing: tuple[str, ...]

    def compilers_of(self, cuda: str) -> Compilers | None:
        """Return the compilers of a CUDA release (``"13.0"``), or None where none are known."""
        return next((one for one in self.compilers if one.cuda == cuda), None)


@cache
def host_needs() -> HostNeeds:
    """Return what the file says, validated."""
    file = Path(__file__).parents[1] / "data" / "wheel.yaml"
    return HostNeeds.model_validate(read_yaml(file.read_text(encoding="utf-8")))
