"""The shape of `releases/data/wheels.yaml`, and what of it holds for one release."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, Field, model_validator

from releases.schema import Link, Record, Sourced, Specifiers, Text, Version
from releases.versions import in_specifiers, parse_version
from releases.wheels.records import (
    CudaMinor,
    Glibc,
    Name,
    OneLine,
    PackageVersionText,
    PythonMinor,
)
from releases.yaml_text import read_yaml

DATA = Path(__file__).parents[1] / "data" / "wheels.yaml"


def _specifier(text: str) -> str:
    try:
        if not SpecifierSet(text):
            raise ValueError("a requirement without a bound changes nothing")
    except InvalidSpecifier:
        raise ValueError(f"not a version specifier: {text!r}") from None
    return text


Requirement = Annotated[str, AfterValidator(_specifier)]


class Locked(Record):
    """What a release is locked for."""

    python: PythonMinor
    glibc: Glibc
    cuda: CudaMinor


class Refused(Record):
    """Why a release has no lock, and the image to use instead."""

    why: Text
    image: Text
    link: Link


class LockedRelease(Record):
    """One release: locked, or refused with the reason."""

    release: Version
    locked: Locked | None
    refused: Refused | None

    @model_validator(mode="after")
    def _one(self) -> LockedRelease:
        if (self.locked is None) == (self.refused is None):
            raise ValueError("a release is either locked or refused")
        return self


class Toolkit(Sourced):
    """The compiler set of one CUDA release."""

    cuda: CudaMinor
    compiler: Mapping[Name, PackageVersionText] = Field(min_length=1)
    reason: OneLine
    since: OneLine
    link: Link


class DepartureRule(Record):
    """An override, constraint or exclusion, for which releases, why and since when."""

    kind: Literal["override", "constraint", "exclude"]
    releases: Specifiers
    package: Name
    requirement: Requirement | None
    replaces: Requirement | None
    reason: OneLine
    since: OneLine
    link: Link

    @model_validator(mode="after")
    def _fits(self) -> DepartureRule:
        if (self.kind == "exclude") != (self.requirement is None):
            raise ValueError("an override or constraint has a requirement, an exclusion has none")
        if (self.kind == "override") != (self.replaces is not None):
            raise ValueError("an override says what it replaces, nothing else does")
        return self


class UnresolvedRule(Record):
    """Something that is not on the package index; its texts are templates."""

    name: Name
    version: OneLine
    reason: OneLine
    command: OneLine
    since: OneLine
    link: Link


class Placeholder(Sourced):
    """Below how many bytes a file holds nothing."""

    bytes_below: Annotated[int, Field(gt=0)]


class KnownBad(Record):
    """A build of a package that is broken, and what to take instead."""

    package: Name
    version: PackageVersionText
    reason: OneLine
    instead: OneLine
    link: Link


class Checks(Record):
    """What the checks of a lock go by."""

    numbered_like_cuda: tuple[Name, ...]
    only_the_major: tuple[Name, ...]
    torch_for_gpu_requires: tuple[Name, ...] = Field(min_length=1)
    flashinfer: tuple[Name, ...] = Field(min_length=1)
    placeholder: Placeholder
    known_bad: tuple[KnownBad, ...] = ()


class WheelData(Record):
    """wheels.yaml."""

    releases: tuple[LockedRelease, ...]
    toolkits: tuple[Toolkit, ...]
    departures: tuple[DepartureRule, ...]
    unresolved: tuple[UnresolvedRule, ...]
    checks: Checks

    @model_validator(mode="after")
    def _whole(self) -> WheelData:
        for what, there in (
            ("release", [r.release for r in self.releases]),
            ("toolkit", [t.cuda for t in self.toolkits]),
        ):
            if len(set(there)) != len(there):
                raise ValueError(f"a {what} stands twice: {there}")
        for one in self.releases:
            if one.locked is not None:
                self.toolkit(one.locked.cuda)
                rules = [r.package for r in self.rules(one.release)]
                if len(set(rules)) != len(rules):
                    raise ValueError(f"{one.release}: a package departs twice: {sorted(rules)}")
        return self

    def toolkit(self, cuda: str) -> Toolkit:
        """Return the toolkit of that CUDA release; ValueError where there is none."""
        for one in self.toolkits:
            if one.cuda == cuda:
                return one
        raise ValueError(f"no toolkit for CUDA {cuda}")

    def release(self, version: str) -> LockedRelease | None:
        """Return what is said of a release, or None where nothing is."""
        return next((r for r in self.releases if r.release == version), None)

    def rules(self, version: str) -> tuple[DepartureRule, ...]:
        """Return the departures that hold for a release."""
        return tuple(d for d in self.departures if in_specifiers(version, d.releases))


class Policy(Record):
    """What one release is locked with: the part of the data that decides its lock."""

    release: Version
    locked: Locked
    toolkit: Toolkit
    departures: tuple[DepartureRule, ...]
    unresolved: tuple[UnresolvedRule, ...]

    @property
    def digest(self) -> str:
        """Return 16 hexadecimal digits that change with anything that could change the lock."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_data(path: Path = DATA) -> WheelData:
    """Return the data in PATH; pydantic's ValidationError where it does not fit its shape."""
    return WheelData.model_validate(read_yaml(path.read_text(encoding="utf-8")))


@functools.cache
def data() -> WheelData:
    """Return the toolkit's own data, read once."""
    return load_data()


def policy(version: str, there: WheelData | None = None) -> Policy | None:
    """Return what a release is locked with; None where it is refused or nobody wrote it down."""
    there = there or data()
    one = there.release(version.removeprefix("v"))
    if one is None or one.locked is None:
        return None
    return Policy(
        release=one.release,
        locked=one.locked,
        toolkit=there.toolkit(one.locked.cuda),
        departures=there.rules(one.release),
        unresolved=there.unresolved,
    )


def locked_releases() -> list[str]:
    """Return the releases that are locked, oldest first."""
    return sorted((r.release for r in data().releases if r.locked), key=parse_version)
