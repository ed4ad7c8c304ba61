"""What a lock of Python packages says, as records."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion
from packaging.version import Version as PackageVersion
from pydantic import AfterValidator, Field, model_validator

from releases.schema import Link, Record, Version

Architecture = Literal["x86_64", "aarch64"]
Device = Literal["gpu", "cpu"]
ARCHITECTURES: tuple[Architecture, ...] = ("x86_64", "aarch64")


def _name(text: str) -> str:
    if not text or canonicalize_name(text, validate=False) != text or text.strip("-") != text:
        raise ValueError(f"not a package's name in its normal form: {text!r}")
    return text


def _package_version(text: str) -> str:
    try:
        PackageVersion(text)
    except InvalidVersion:
        raise ValueError(f"not a package's version: {text!r}") from None
    return text


Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"), AfterValidator(_name)]
PackageVersionText = Annotated[str, AfterValidator(_package_version)]
Hash = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
OneLine = Annotated[str, Field(min_length=3, pattern=r"^\S(.*\S)?$")]
Moment = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$")]
PythonMinor = Annotated[str, Field(pattern=r"^3\.\d+$")]
CudaMinor = Annotated[str, Field(pattern=r"^\d+\.\d+$")]
Glibc = Annotated[str, Field(pattern=r"^2\.\d+$")]


class Package(Record):
    """One package: its version, and the one file of it that is installed."""

    name: Name
    version: PackageVersionText
    hashes: tuple[Hash, ...] = Field(min_length=1)
    file: Annotated[str, Field(pattern=r"^[\w.+!-]+$")]
    size: Annotated[int, Field(ge=0)] | None
    """Bytes to download; None where the index does not say."""
    marker: Annotated[str, Field(pattern=r"^(\S.*)?$")] = ""


class Departure(Record):
    """Where the lock differs from what SGLang and its dependencies ask for, and why."""

    package: Name
    here: OneLine
    """What the lock has: `==13.0.88`, or `left out`."""
    without: OneLine
    """What it would be otherwise: `==13.5.37`."""
    reason: OneLine
    since: OneLine
    link: Link


class Unresolved(Record):
    """Something that belongs to the environment and could not be resolved, and what resolves it."""

    name: Name
    version: OneLine
    reason: OneLine
    command: OneLine
    link: Link


class WheelLock(Record):
    """All packages of one release for one CPU architecture."""

    release: Version
    architecture: Architecture
    python: PythonMinor
    glibc: Glibc
    """The oldest C library that every file of the lock runs on."""
    device: Device = "gpu"
    """What it computes on; one for the CPU has no CUDA and serves no GPU."""
    cuda: CudaMinor | None = None
    as_of: Moment
    """The lock knows what the index held at this time: locked again as of it, it is the same."""
    uv: OneLine
    data: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = None
    """Digest of the data it was made from (`releases.wheels.data.Policy.digest`); an operator's
    own lock may have none."""
    departures: tuple[Departure, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()
    packages: tuple[Package, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _cuda_is_for_the_gpu(self) -> WheelLock:
        if (self.cuda is None) != (self.device == "cpu"):
            raise ValueError("a lock for the GPU names its CUDA release, one for the CPU has none")
        return self

    def package(self, name: str) -> Package | None:
        """Return the package of that (normal) name, or None where the lock has none."""
        return next((p for p in self.packages if p.name == name), None)

    @property
    def size(self) -> int:
        """Bytes to download for the whole environment, as far as the index says."""
        return sum(p.size or 0 for p in self.packages)

    @property
    def digest(self) -> str:
        """Return what names an environment made from this lock: 16 hexadecimal digits.

        It covers the packages, the Python and the architecture, not reasons or dates: an
        environment is not made anew because a comment changed.
        """
        lines = [self.python, self.architecture]
        lines += [f"{p.name}=={p.version};{p.marker} {' '.join(p.hashes)}" for p in self.packages]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
