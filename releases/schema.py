"""The shape of the data files. Every record is frozen and refuses a key it does not know.

A number that decides something carries its `source` and a `basis`: `seen` where the source says
it, `inferred` where it was concluded from what the source says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from releases.versions import check_specifiers, parse_version

Basis = Literal["seen", "inferred"]
CudaFamily = Literal["cuda13", "cu129"]
Runtime = Literal["image", "wheel"]
Severity = Literal["refuse", "warn", "note"]
GpuClass = Literal["datacenter", "rtxpro", "geforce", "spark", "tegra"]


def _version(text: str) -> str:
    parse_version(text)
    return text


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:  # no ValueError, so pydantic would let it through as it is
        raise ValueError(f"not a pattern: {text!r}: {error}") from None
    return text


Text = Annotated[str, Field(min_length=3)]
Version = Annotated[str, AfterValidator(_version)]
Specifiers = Annotated[str, AfterValidator(check_specifiers)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Capability = Annotated[str, Field(pattern=r"^\d+\.\d$")]
Link = Annotated[str, Field(pattern=r"^https://")]


class Record(BaseModel):
    """Frozen, and strict about its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Sourced(Record):
    """Something that was looked up: where, and whether it stands there or was concluded."""

    source: Text
    basis: Basis


class SourcedText(Sourced):
    """One looked-up value."""

    value: str


class SourcedVersion(Sourced):
    """One looked-up version number; compare it with `releases.versions.parse_version`."""

    value: Version


class MinimumDriver(Record):
    """Names of thresholds in host_rules.yaml."""

    native: str
    minor_version_compatibility: str | None


class Require(Sourced):
    """NVIDIA_REQUIRE_CUDA of the image: its CUDA part and the driver branches it excepts."""

    expression: Annotated[str, Field(pattern=r"^cuda>=\d+\.\d+$")]
    exception_branches: tuple[int, ...]


class Compat(Sourced):
    """Host driver branches named by the image's forward-compatibility libcuda."""

    branches: tuple[int, ...]
    libcuda: Version | None


class Code(Sourced):
    """Machine code in the image for one CPU architecture, by compute capability of the GPU."""

    code: Mapping[Capability, str]

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The compute capabilities that can run the image, in rising order."""
        return tuple(sorted(self.code, key=parse_version))


class Image(Sourced):
    """One container image of a release."""

    tag: Annotated[str, Field(pattern=r"^[\w./-]+:v\d+\.\d+\.\d+[\w.-]*$")]
    cuda: Version
    cuda_family: CudaFamily
    platforms: tuple[Literal["linux/amd64", "linux/arm64"], ...]
    minimum_driver: MinimumDriver
    require: Require
    compat: Compat
    architectures: Mapping[Literal["x86_64", "aarch64"], Code]


class Frozen(Sourced):
    """Why a node is held at this release, and what frees it."""

    why: Text
    freed_by: Text


class Endpoint(Record):
    """A path of the server, and whether asking it makes the server generate."""

    path: Annotated[str, Field(pattern=r"^/")]
    generates: bool


class Endpoints(Sourced):
    """The paths that the toolkit asks."""

    ready: Endpoint
    health: Endpoint
    models: Endpoint
    metrics: Endpoint
    server_info: Endpoint


class RenamedFlag(Sourced):
    """A flag that went away without the parser saying what to write instead."""

    old: str
    new: str | None
    rewrite: str | None = None
    note: Text
    since: Version


class Flag(Record):
    """One spelling of a flag, as the release's parser takes it (flags/<version>.txt)."""

    name: str
    takes: Literal["switch", "toggle", "value", "optional", "list", "none"]
    type: str = ""
    of: str | None = None
    config: bool = True
    required: bool = False
    choices: tuple[str, ...] = ()
    deprecated: str | None = None

    @property
    def canonical(self) -> str:
        """The first spelling of this flag: its own name unless it is an alias."""
        return self.of or self.name


class ReservedFlag(Record):
    """A flag that the toolkit sets; `key` is what the service says instead, if anything."""

    flag: str
    key: str | None
    why: Text


class Variable(Sourced):
    """An environment variable that an operator should not set, or not to these values."""

    name: Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
    releases: Specifiers
    severity: Literal["refuse", "warn"]
    when_value: tuple[str, ...] | None = None
    why: Text
    instead: Text


class Condition(Record):
    """A condition on a value: at least `min`, less than `below`, or one of `any_of`."""

    min: float | None = None
    below: float | None = None
    any_of: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _one(self) -> Condition:
        if [self.min, self.below, self.any_of].count(None) != 2:
            raise ValueError("a condition has one of min, below and any_of")
        return self


class When(Record):
    """What a service must look like for a defect to touch it; nothing given: every service."""

    flags: Mapping[str, Condition | None] = Field(default_factory=dict)
    flags_any: Mapping[str, Condition | None] = Field(default_factory=dict)
    flags_absent: tuple[str, ...] = ()
    env: Mapping[str, Condition | None] = Field(default_factory=dict)
    env_absent: tuple[str, ...] = ()
    runtime: Runtime | None = None


class Defect(Sourced):
    """Something that a release does wrong, and the way around it."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    releases: Specifiers
    severity: Severity
    what: Text
    when: When
    workaround: Text
    link: Link | None


class Cache(Record):
    """A variable that says where compiled code (or, `shared`, weights) goes."""

    variable: Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
    path: Annotated[str, Field(pattern=r"^\{(cache|hub)\}(/\w+)*$")]
    redirected: bool
    shared: bool = False
    releases: Specifiers
    source: Text


class Common(Record):
    """common.yaml."""

    reserved_flags: tuple[ReservedFlag, ...]
    environment: tuple[Variable, ...]
    defects: tuple[Defect, ...]
    caches: tuple[Cache, ...]


class ReleaseFile(Record):
    """One release as its own file tells it."""

    version: Version
    requires_python: SourcedText
    frozen: Frozen | None
    images: tuple[Image, ...] = Field(min_length=1)
    endpoints: Endpoints
    renamed: tuple[RenamedFlag, ...]


class Release(ReleaseFile):
    """One release: its own file, its flags, and what common.yaml says about it."""

    flags: Mapping[str, Flag]
    reserved_flags: tuple[ReservedFlag, ...]
    environment: tuple[Variable, ...]
    defects: tuple[Defect, ...]
    caches: tuple[Cache, ...]

    def image(self, cuda_family: str) -> Image | None:
        """Return the release's image of that CUDA family, or None where there is none."""
        return next((i for i in self.images if i.cuda_family == cuda_family), None)


class DriverBranch(Sourced):
    """A driver branch, its support, and the CUDA major it runs without compatibility libraries."""

    branch: int
    kind: Literal["lts", "production", "ended"]
    until: Annotated[str, Field(pattern=r"^\d{4}-\d{2}$")] | None
    cuda_major: int


class UpgradeTarget(Sourced):
    """The driver branch that advice names, and others that would do."""

    branch: int
    alternatives: tuple[int, ...]


class ClassPattern(Sourced):
    """A GPU class by name."""

    name: GpuClass
    pattern: Pattern


class CapabilityPattern(Sourced):
    """A compute capability by name."""

    pattern: Pattern
    capability: Capability


class HostRules(Record):
    """host_rules.yaml."""

    thresholds: Mapping[str, SourcedVersion]
    driver_branches: tuple[DriverBranch, ...]
    upgrade_target: UpgradeTarget
    classes_by_name: tuple[ClassPattern, ...]
    capability_by_name: tuple[CapabilityPattern, ...]
