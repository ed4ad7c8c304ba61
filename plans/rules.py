"""What a GPU can run: ``plans/data/rules.yaml`` (images), ``wheel_rules.yaml`` (packages).

A rule asks about one GPU and one image of the release table, or the packages
of one release. The rules are tried in their order; the first whose conditions
all hold decides. Numbers and their sources are in the data, not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from facts.records import ABSENT, Unknown, known
from releases.table import HOST_RULES
from releases.versions import parse_version
from releases.yaml_text import read_yaml

GpuClass = Literal["datacenter", "rtxpro", "geforce", "vgpu", "tegra", "spark", "unknown"]
"""What a GPU is sold as, as far as drivers care; ``unknown`` where no list names it."""

Version = tuple[int, ...]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Compare(_Data):
    """A condition on a version. An unknown version meets only ``known: false`` and ``not``."""

    known: bool | None = None
    below: str | None = None
    at_least: str | None = None
    is_: str | None = Field(default=None, alias="is")
    not_: str | None = Field(default=None, alias="not")
    in_: tuple[str, ...] | None = Field(default=None, alias="in")


class When(_Data):
    """The conditions of a rule; all of them must hold."""

    tegra: bool | None = None
    wsl: bool | None = None
    code: bool | None = None
    code_anywhere: bool | None = None
    family: tuple[str, ...] | None = None
    architecture: tuple[str, ...] | None = None
    class_: tuple[GpuClass, ...] | None = Field(default=None, alias="class")
    branch_in: tuple[Literal["require", "compat"], ...] | None = None
    capability: Compare | None = None
    driver: Compare | None = None
    cuda_header: Compare | None = None
    l4t: Compare | None = None
    toolkit: Compare | None = None
    wish: Literal["forward_compat", "cu129_override"] | None = None


class Rule(_Data):
    """One row of the table."""

    id: str
    when: When
    then: Literal["run", "refuse"]
    code: str | None = None
    seen: str = ""
    needed: str = ""
    advice: str = ""
    reason: str = ""
    cautions: tuple[str, ...] = ()
    override: bool = False
    sure: Literal["seen", "inferred"]
    source: str


class Table(_Data):
    """The whole file."""

    cautions: Mapping[str, str]
    rules: tuple[Rule, ...]


@dataclass(frozen=True)
class Case:
    """One GPU and one image: everything that a rule may ask."""

    name: str
    capability: str | Unknown  # "8.9"
    gpu_class: GpuClass
    driver: str | Unknown
    architecture: str | Unknown
    release: str
    family: str
    code: bool  # the image's own list for this architecture has the capability
    code_anywhere: bool
    require_branches: frozenset[int] = frozenset()
    compat_branches: frozenset[int] = frozenset()
    brand: str | Unknown = ABSENT
    cuda_header: str | Unknown = ABSENT
    tegra: bool = False
    wsl: bool = False
    l4t: int | Unknown = ABSENT
    toolkit: str | Unknown = ABSENT
    forward_compat: bool = False
    cu129_override: bool = False
    runtime: Literal["image", "wheel"] = "image"


@dataclass(frozen=True)
class Verdict:
    """The rule that decided a case, with its texts filled in."""

    rule: str
    runs: bool
    code: str | None = None
    seen: str = ""
    needed: str = ""
    advice: str = ""
    reason: str = ""
    cautions: tuple[tuple[str, str], ...] = ()  # code and text
    override: bool = False  # the image's check of the driver is off, its compat libraries hidden


@lru_cache(maxsize=1024)
def version_of(text: str | Unknown) -> Version | None:
    """Return a version's numbers (``"580.65.06"`` gives ``(580, 65, 6)``), None if it has none.

    nvidia-smi prints drivers with two or three parts: 595.84, 550.135, 580.65.06.
    """
    if not known(text):
        return None
    try:
        return parse_version(text)
    except ValueError:
        return None


def branch_of(driver: str | Unknown) -> int | None:
    """Return a driver's branch, its major version: ``"580.65.06"`` gives 580."""
    version = version_of(driver)
    return version[0] if version else None


TABLES = {"image": "rules.yaml", "wheel": "wheel_rules.yaml"}


@cache
def table(runtime: Literal["image", "wheel"] = "image") -> Table:
    """Return the table of rules of a runtime, validated."""
    folder = Path(__file__).with_name("data")
    text = folder.joinpath(TABLES[runtime]).read_text(encoding="utf-8")
    return Table.model_validate(read_yaml(text))


def threshold(name: str) -> str:
    """Return a threshold of the host rules, such as ``cuda13_minimum_driver``: ``"580"``."""
    return HOST_RULES.thresholds[name].value


def judge(case: Case, words: Mapping[str, str] | None = None) -> Verdict:
    """Return the verdict of the first rule that names this case.

    Takes the case and words for its texts beside what the case itself says (commands that
    depend on the node's system). The last rule of the table names every case and refuses.
    """
    rule = _first_that_holds(case)
    return _verdict(rule, case, words or {})


@lru_cache(maxsize=1024)
def _first_that_holds(case: Case) -> Rule:
    return next(rule for rule in table(case.runtime).rules if _holds(rule.when, case))


def _holds(when: When, case: Case) -> bool:
    branch = branch_of(case.driver)
    checks = (
        when.tegra is None or when.tegra == case.tegra,
        when.wsl is None or when.wsl == case.wsl,
        when.code is None or when.code == case.code,
        when.code_anywhere is None or when.code_anywhere == case.code_anywhere,
        when.family is None or case.family in when.family,
        when.architecture is None or case.architecture in when.architecture,
        when.class_ is None or case.gpu_class in when.class_,
        when.branch_in is None
        or all(branch in getattr(case, f"{name}_branches") for name in when.branch_in),
        _compares(when.capability, case.capability),
        _compares(when.driver, case.driver),
        _compares(when.cuda_header, case.cuda_header),
        _compares(when.l4t, str(case.l4t) if known(case.l4t) else ABSENT),
        _compares(when.toolkit, case.toolkit),
        when.wish != "forward_compat" or case.forward_compat,
        when.wish != "cu129_override" or case.cu129_override,
    )
    return all(checks)


def _compares(condition: Compare | None, text: str | Unknown) -> bool:
    if condition is None:
        return True
    version = version_of(text)
    if condition.known is not None and condition.known != (version is not None):
        return False
    if condition.not_ is not None and version == _value(condition.not_):
        return False
    asks_value = (condition.below, condition.at_least, condition.is_, condition.in_)
    if all(one is None for one in asks_value):
        return True
    if version is None:
        return False
    return (
        (condition.below is None or version < _value(condition.below))
        and (condition.at_least is None or version >= _value(condition.at_least))
        and (condition.is_ is None or version == _value(condition.is_))
        and (condition.in_ is None or version in [_value(one) for one in condition.in_])
    )


@cache
def _value(word: str) -> Version:
    found = HOST_RULES.thresholds.get(word)
    return parse_version(found.value if found else word)


def _verdict(rule: Rule, case: Case, words: Mapping[str, str]) -> Verdict:
    fields: dict[str, Any] = {
        "name": case.name,
        "capability": case.capability,
        "class": case.gpu_class,
        "brand": case.brand,
        "driver": case.driver,
        "branch": branch_of(case.driver),
        "architecture": case.architecture,
        "release": case.release,
        "family": case.family,
        "cuda_header": case.cuda_header,
        "l4t": case.l4t,
        "toolkit": case.toolkit,
        **{name: one.value for name, one in HOST_RULES.thresholds.items()},
        **words,
    }

    def fill(text: str) -> str:
        return text.format_map(fields)

    return Verdict(
        rule=rule.id,
        runs=rule.then == "run",
        code=rule.code,
        seen=fill(rule.seen),
        needed=fill(rule.needed),
        advice=fill(rule.advice),
        reason=fill(rule.reason),
        cautions=tuple((code, fill(table(case.runtime).cautions[code])) for code in rule.cautions),
        override=rule.override,
    )
