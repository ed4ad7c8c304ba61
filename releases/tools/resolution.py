"""What is asked of uv to lock packages, and what its answer means. Pure: nothing is run here.

uv writes its answer as a pylock.toml, which names each file with its size and hash. It also names
the index's host, so it is read and thrown away: what is kept is a requirements file.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from releases.wheels.data import Policy
from releases.wheels.records import Departure, Package, Unresolved
from releases.wheels.wheel_tags import supported

UV_OLDEST = (0, 12)
"""Older ones do not take the pre-releases that SGLang's own pins name."""
ANSWER = "pylock.toml"
YANKED = re.compile(
    r"`(?P<name>[^`=]+)==(?P<version>[^`]+)` is yanked(?: \(reason: (?P<why>.*)\))?"
)


class CannotLock(Exception):
    """uv's answer cannot become a lock; the text says what is missing."""


@dataclass(frozen=True)
class Target:
    """What packages are resolved for."""

    python: str
    glibc: str
    architecture: str


@dataclass(frozen=True)
class Question:
    """What uv resolves: requirement lines of each kind, one per package."""

    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    with_dependencies: bool = True

    def files(self) -> dict[str, str]:
        """Return the files that uv reads, by name; none for a kind that is empty."""
        kinds = {
            "requirements.in": self.requirements,
            "constraints.in": self.constraints,
            "overrides.in": self.overrides,
            "excludes.in": self.excludes,
        }
        return {name: "\n".join(lines) + "\n" for name, lines in kinds.items() if lines}


def question(policy: Policy) -> Question:
    """Return what is asked of uv for a release."""
    by_kind: dict[str, list[str]] = {"override": [], "constraint": [], "exclude": []}
    for rule in policy.departures:
        by_kind[rule.kind].append(f"{rule.package}{rule.requirement or ''}")
    pins = [f"{name}=={version}" for name, version in policy.toolkit.compiler.items()]
    return Question(
        (f"sglang=={policy.release}", *pins),
        tuple(by_kind["constraint"]),
        tuple(by_kind["override"]),
        tuple(by_kind["exclude"]),
    )


def question_without(policy: Policy) -> Question:
    """Return what a plain install would ask, with the overrides that make it answerable."""
    return Question((f"sglang=={policy.release}",), overrides=question(policy).overrides)


def question_of_kernels(
    policy: Policy, packages: Sequence[Package], parts: Sequence[str]
) -> Question:
    """Return the question for FlashInfer's precompiled kernels, which are on an index of its own.

    PARTS are their packages; everything of PACKAGES, the lock so far, is held where it is.
    """
    versions = {u.name: u.version for u in unresolved(policy, packages, "x86_64", None)}
    return Question(
        tuple(f"{name}=={versions[name]}" for name in parts if name in versions),
        tuple(f"{package.name}=={package.version}" for package in packages),
        excludes=question(policy).excludes,
    )


def indexes_of_kernels(cuda: str, base: str) -> tuple[str, str]:
    """Return the indexes of FlashInfer's kernels: those of one CUDA release, then those of all.

    BASE is the address that `flashinfer install-cubin-wheel --dry-run` prints; the ones compiled
    for a CUDA release are below it, as `flashinfer install-jit-cache-wheel` asks for them.
    """
    base = base.rstrip("/")
    return (f"{base}/{_label(cuda)}", base)


def _label(cuda: str) -> str:
    return "cu" + cuda.replace(".", "")


def pinned(packages: Iterable[Package]) -> Question:
    """Return the question whether exactly these packages are on the index."""
    lines = tuple(f"{p.name}=={p.version}" for p in packages)
    return Question(lines, with_dependencies=False)


def compile_arguments(
    uv: str, asked: Question, target: Target, *, as_of: str | None, indexes: Sequence[str] = ()
) -> list[str]:
    """Return the argument list that has uv resolve ASKED, in a folder that holds its files.

    Only metadata is fetched, only wheels are taken, no Python is downloaded. AS_OF leaves out
    what came later; INDEXES are asked before the one that uv is set up with. The answer is written
    to ANSWER.
    """
    out = [uv, "pip", "compile", "--no-progress", "--no-python-downloads"]
    out += ["--format", "pylock.toml", "--no-header", "--no-build"]
    out += ["--python-version", target.python]
    glibc = target.glibc.replace(".", "_")
    out += ["--python-platform", f"{target.architecture}-manylinux_{glibc}"]
    if as_of is not None:
        out += ["--exclude-newer", as_of]
    for index in indexes:
        out += ["--index", index]
    if not asked.with_dependencies:
        out.append("--no-deps")
    files = asked.files()
    for option, name in (
        ("--constraints", "constraints.in"),
        ("--overrides", "overrides.in"),
        ("--excludes", "excludes.in"),
    ):
        if name in files:
            out += [option, name]
    return [*out, "--output-file", ANSWER, "requirements.in"]


def python_arguments(uv: str, python: str) -> list[str]:
    """Return the argument list that has uv say which Pythons of that minor it can download."""
    return [uv, "python", "list", "--only-downloads", "--all-arches", "--output-format", "json", python]  # fmt: skip


def uv_version(text: str) -> str:
    """Return the version in what `uv --version` prints; CannotLock where it is too old."""
    found = re.search(r"\buv (\d+)\.(\d+)\.(\d+)", text)
    if found is None:
        raise CannotLock(f"`uv --version` says no version: {text.strip()!r}")
    if (int(found[1]), int(found[2])) < UV_OLDEST:
        oldest = ".".join(str(n) for n in UV_OLDEST)
        raise CannotLock(f"{found[0]} is too old: {oldest} or newer is needed (`uv self update`)")
    return found[0].removeprefix("uv ")


def python_version(answer: str, architecture: str) -> str | None:
    """Return the newest CPython that uv lists for Linux with glibc on ARCHITECTURE, or None."""
    for one in json.loads(answer):
        if (
            (one["implementation"], one["os"], one["arch"]) == ("cpython", "linux", architecture)
            and one["libc"] == "gnu"
            and one["variant"] == "default"
        ):
            return str(one["version"])
    return None


def offered(answer: str) -> dict[str, tuple[str, list[Package]]]:
    """Return each package's version and usable wheels, as uv's pylock.toml names them.

    A package without any, such as one that is there as a source archive alone, has an empty list.
    """
    out: dict[str, tuple[str, list[Package]]] = {}
    for entry in tomllib.loads(answer).get("packages", []):
        name, version = entry["name"], entry["version"]
        wheels = [_package(name, version, wheel) for wheel in entry.get("wheels", [])]
        out[name] = (version, wheels)
    return out


def _package(name: str, version: str, wheel: Mapping[str, Any]) -> Package:
    digest = wheel.get("hashes", {}).get("sha256")
    path = wheel.get("name") or urlsplit(wheel.get("url", wheel.get("path", ""))).path
    file = unquote(PurePath(path).name)
    if digest is None:
        raise CannotLock(f"the index gives no sha256 for {file}")
    return Package(
        name=name,
        version=version,
        file=file,
        size=wheel.get("size"),
        hashes=(f"sha256:{digest}",),
    )


def chosen(answer: str, target: Target) -> tuple[list[Package], list[str]]:
    """Return the one wheel of each package that is installed, by name; and those without any.

    Where a package has several that fit, it is the one whose tags the installer would prefer.
    """
    ranks = supported(target.python, target.glibc, target.architecture)
    out, without = [], []
    for name, (version, wheels) in sorted(offered(answer).items()):
        ranked = [(rank, wheel) for wheel in wheels if (rank := _rank(wheel, ranks)) is not None]
        if ranked:
            out.append(min(ranked, key=lambda pair: (pair[0], pair[1].file))[1])
        else:
            without.append(f"{name} {version}")
    return out, without


def _rank(wheel: Package, ranks: Mapping[Any, int]) -> int | None:
    try:
        _, _, _, tags = parse_wheel_filename(wheel.file)
    except InvalidWheelFilename:
        return None
    return min((ranks[tag] for tag in tags if tag in ranks), default=None)


def departures(
    policy: Policy, here: Sequence[Package], plain: Mapping[str, str]
) -> list[Departure]:
    """Return where HERE, the lock's packages, differs from PLAIN, what an install would take.

    PLAIN has versions by name. What changes nothing today is no departure and is left out.
    """
    own = {package.name: package.version for package in here}
    out = []
    for name, version in policy.toolkit.compiler.items():
        if own.get(name) == version and plain.get(name) != version:
            out.append(_departure(policy.toolkit, name, f"=={version}", plain.get(name)))
    for rule in policy.departures:
        there, otherwise = own.get(rule.package), plain.get(rule.package)
        if rule.kind == "exclude":
            if there is None and otherwise is not None:
                out.append(_departure(rule, rule.package, "left out", otherwise))
        elif there is not None and (rule.replaces is not None or there != otherwise):
            text = f"=={there}"
            if rule.replaces is not None:
                out.append(_departure(rule, rule.package, text, None, rule.replaces))
            else:
                out.append(_departure(rule, rule.package, text, otherwise))
    return out


def _departure(
    rule: Any, package: str, here: str, plain: str | None, replaces: str | None = None
) -> Departure:
    return Departure(
        package=package,
        here=here,
        without=replaces or ("not there" if plain is None else f"=={plain}"),
        reason=rule.reason,
        since=rule.since,
        link=rule.link,
    )


def unresolved(
    policy: Policy, packages: Sequence[Package], architecture: str, python: str | None
) -> list[Unresolved]:
    """Return what is not in the lock and what resolves it; PYTHON is what uv can download."""
    there = {package.name: package.version for package in packages}
    words = {
        "version": there.get("flashinfer-python", "unknown"),
        "label": _label(policy.locked.cuda),
        "cuda": policy.locked.cuda,
        "release": policy.release,
        "python": python or policy.locked.python,
        "machine": architecture,
    }
    return [
        Unresolved(
            name=rule.name,
            version=rule.version.format_map(words),
            reason=rule.reason.format_map(words),
            command=rule.command.format_map(words),
            link=rule.link,
        )
        for rule in policy.unresolved
        if rule.name not in there
    ]


def no_solution(said: str) -> str | None:
    """Return why uv finds no versions that fit, in its own words without its hints.

    None where it failed for another reason, such as an index that does not answer.
    """
    if "No solution found" not in said:
        return None
    lines = [line.strip() for line in said.partition("\nhint:")[0].splitlines()]
    causes = lines[next(at for at, line in enumerate(lines) if "No solution found" in line) + 1 :]
    return " ".join(causes).strip().removeprefix("cause: ") or "no solution found"


def gone(locked: Sequence[Package], answer: str, said: str) -> list[str]:
    """Return which locked packages can no longer be had as they were locked, and why.

    ANSWER is uv's to `pinned`, SAID what it printed beside it, where it names yanked versions.
    """
    there = offered(answer)
    yanked = {m["name"]: m["why"] or "no reason given" for m in YANKED.finditer(said)}
    out = []
    for package in locked:
        version, wheels = there.get(package.name, ("", []))
        served = {one for wheel in wheels for one in wheel.hashes}
        what = f"{package.name} {package.version}"
        if version != package.version:
            out.append(f"{what}: not on the index")
        elif not served.intersection(package.hashes):
            out.append(f"{what}: {package.file} with the locked hash is not on the index")
        elif package.name in yanked:
            out.append(f"{what}: yanked: {yanked[package.name]}")
    return out
