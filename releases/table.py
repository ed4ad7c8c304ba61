"""The release table: what the toolkit knows of each SGLang release, and questions about it.

The data lies in `releases/data/`: one file per release, its flags in `flags/<version>.txt`
(written by `releases/tools/extract_flags.py` from the released wheel), `common.yaml` for what
holds for several releases and `host_rules.yaml` for the numbers about drivers and GPUs. Shapes
are in `releases/schema.py`. Everything is read and checked once, when this module is imported.

Flags have their parser's names without the leading dashes (`mem-fraction-static`); every
function here also takes them with underscores or with the dashes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from releases.schema import (
    Cache,
    Common,
    Condition,
    Defect,
    Flag,
    HostRules,
    Record,
    Release,
    ReleaseFile,
    Runtime,
    Severity,
    Variable,
    When,
)
from releases.versions import in_specifiers, parse_version
from releases.yaml_text import read_yaml

DATA = Path(__file__).parent / "data"
Entry = TypeVar("Entry", Variable, Defect, Cache)


class UnknownRelease(LookupError):
    """No release of that version is in the table."""


class FlagProblem(Record):
    """A server argument that the operator has to look at."""

    flag: str
    kind: Literal["unknown", "reserved", "deprecated", "value", "choice", "repeated"]
    severity: Severity
    message: str
    suggestion: str | None = None


class EnvironmentProblem(Record):
    """An environment variable that the operator has to look at."""

    name: str
    severity: Severity
    message: str
    suggestion: str


def normalise_flag(name: str) -> str:
    """Return a flag's name as the table has it: `--tp_size` becomes `tp-size`."""
    return name.strip().removeprefix("--").replace("_", "-")


def read_flags(text: str) -> dict[str, Flag]:
    """Return the flags of a flags/<version>.txt; its columns are told in extract_flags.py.

    Raise ValueError for a line that does not fit, a repeated flag or an alias of no flag.
    """
    out: dict[str, Flag] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        head, _, deprecated = line.partition(" deprecated=")
        words = head.split(" ")
        if len(words) < 2 or words[0] in out:
            raise ValueError(f"line {number}: {line!r}")
        fields: dict[str, Any] = {"name": words[0], "takes": words[1]}
        for word in words[2:]:
            key, equals, value = word.partition("=")
            if not equals:
                fields["type"] = word
            elif key == "choices":
                fields[key] = tuple(value.split(","))
            elif key in ("config", "required"):
                fields[key] = value == "yes"
            else:
                fields[key] = value
        out[words[0]] = Flag(**fields, deprecated=deprecated or None)
    for flag in out.values():
        if flag.canonical not in out:
            raise ValueError(f"{flag.name} is another spelling of {flag.of}, which is not there")
    return out


def _read_yaml(path: Path) -> Any:
    return read_yaml(path.read_text(encoding="utf-8"))


def load_releases(folder: Path = DATA) -> dict[str, Release]:
    """Return the releases under FOLDER, oldest first, each checked against the schema.

    Raise pydantic's ValidationError for data that does not fit, ValueError for a file whose name
    is not its version, FileNotFoundError for a release without flags.
    """
    common = Common.model_validate(_read_yaml(folder / "common.yaml"))
    own: list[ReleaseFile] = []
    for path in folder.glob("[0-9]*.yaml"):
        entry = ReleaseFile.model_validate(_read_yaml(path))
        if entry.version != path.stem:
            raise ValueError(f"{path.name} says it is {entry.version}")
        own.append(entry)
    out: dict[str, Release] = {}
    for entry in sorted(own, key=lambda e: parse_version(e.version)):
        version = entry.version
        flags = read_flags((folder / "flags" / f"{version}.txt").read_text(encoding="utf-8"))
        out[version] = Release(
            **{name: getattr(entry, name) for name in ReleaseFile.model_fields},
            flags=flags,
            reserved_flags=common.reserved_flags,
            environment=_for_release(version, common.environment),
            defects=_for_release(version, common.defects),
            caches=_for_release(version, common.caches),
        )
    return out


def _for_release(version: str, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return tuple(e for e in entries if in_specifiers(version, e.releases))


def load_host_rules(folder: Path = DATA) -> HostRules:
    """Return the numbers about hosts under FOLDER; ValidationError if they do not fit."""
    return HostRules.model_validate(_read_yaml(folder / "host_rules.yaml"))


RELEASES: dict[str, Release] = load_releases()
HOST_RULES: HostRules = load_host_rules()


def get_release(version: str) -> Release:
    """Return the release of that version (`0.5.22`, also `v0.5.22`); else UnknownRelease."""
    known = RELEASES.get(version.removeprefix("v"))
    if known is None:
        raise UnknownRelease(
            f"SGLang {version} is not in the release table; known: {', '.join(RELEASES)}"
        )
    return known


def newest() -> Release:
    """Return the newest release of the table."""
    return list(RELEASES.values())[-1]


def releases_for(cuda_family: str) -> list[Release]:
    """Return the releases with an image of that CUDA family (`cuda13`, `cu129`), newest first."""
    return [r for r in reversed(RELEASES.values()) if r.image(cuda_family) is not None]


def ready_path(release: Release) -> str:
    """Return the path that answers 200 when the server takes requests."""
    return release.endpoints.ready.path


def capability_of(name: str) -> str | None:
    """Return a GPU's compute capability by its name, even a cut one; None if no rule names it."""
    for rule in HOST_RULES.capability_by_name:
        if re.search(rule.pattern, name):
            return rule.capability
    return None


def class_of(name: str) -> str | None:
    """Return a GPU's class by its (also cut) name; None if no pattern names it."""
    for rule in HOST_RULES.classes_by_name:
        if re.search(rule.pattern, name):
            return rule.name
    return None


def flags_new(old: str, new: str) -> list[str]:
    """Return the flags that release NEW has and OLD has not, sorted; UnknownRelease."""
    return sorted(set(get_release(new).flags) - set(get_release(old).flags))


def flags_gone(old: str, new: str) -> list[str]:
    """Return the flags that release OLD has and NEW has not, sorted; UnknownRelease."""
    return flags_new(new, old)


def is_given(value: object) -> bool:
    """Return whether an argument's value makes a flag appear: `false` leaves a switch out."""
    return value is not False and value is not None


def config_accepts(release: Release, name: str) -> bool:
    """Return whether the release's `--config` file can carry the flag NAME.

    False also for a flag that the release does not have. What the file cannot carry goes on the
    command line: toggles, lists with a parser of their own (`lora-paths`), and up to 0.5.22
    flags that share a destination with a deprecated one.
    """
    flag = release.flags.get(normalise_flag(name))
    return flag is not None and flag.config


def flag_problems(release: Release, arguments: Mapping[str, object]) -> list[FlagProblem]:
    """Return what is wrong with a service's server arguments, in the order they were given.

    ARGUMENTS maps a flag (dashes or underscores) to its YAML value. Reported are: a flag that
    the release does not have, with the nearest one it has and the releases that have it; one
    that the toolkit sets; a deprecated one with what SGLang says to write; a value of a shape
    that the parser rejects; a choice that the release does not list (a warning, as plug-ins add
    some); two spellings of one flag.
    """
    out: list[FlagProblem] = []
    first: dict[str, str] = {}
    reserved = {r.flag: r for r in release.reserved_flags}
    for given, value in arguments.items():
        name = normalise_flag(given)
        flag = release.flags.get(name)
        canonical = flag.canonical if flag else name
        if canonical in reserved:
            rule = reserved[canonical]
            instead = f"write {rule.key} in the service" if rule.key else "leave it out"
            out.append(
                FlagProblem(
                    flag=name,
                    kind="reserved",
                    severity="refuse",
                    message=f"--{name} is set by the toolkit: {rule.why}",
                    suggestion=instead,
                )
            )
            continue
        if flag is None:
            out.append(_unknown(release, name))
            continue
        if canonical in first:
            out.append(
                FlagProblem(
                    flag=name,
                    kind="repeated",
                    severity="refuse",
                    message=f"--{name} and --{first[canonical]} are the same flag",
                    suggestion="keep one of them",
                )
            )
            continue
        first[canonical] = name
        if flag.deprecated is not None and is_given(value):
            rewrite = None if flag.deprecated == "-" else flag.deprecated
            out.append(
                FlagProblem(
                    flag=name,
                    kind="deprecated",
                    # "none" either does nothing or stops the launch; it never does what it says.
                    severity="refuse" if flag.takes == "none" else "warn",
                    message=f"--{name} is deprecated in SGLang {release.version}",
                    suggestion=rewrite,
                )
            )
        out += _value_problems(flag, value)
    return out


def _unknown(release: Release, name: str) -> FlagProblem:
    elsewhere = [r for r in RELEASES.values() if name in r.flags]
    own = parse_version(release.version)
    older = [r for r in elsewhere if parse_version(r.version) < own]
    newer = [r for r in elsewhere if parse_version(r.version) > own]
    message = f"SGLang {release.version} has no flag --{name}"
    suggestion: str | None = None
    if older:
        message += f"; the last known release that has it is {older[-1].version}"
        said = older[-1].flags[name].deprecated
        if said and _still_takes(release, said.replace(f"--{name} ", "")):
            suggestion = said
        for known in RELEASES.values():
            for rename in known.renamed:
                if rename.old == name and parse_version(known.version) <= own:
                    message += f" ({rename.note})"
                    suggestion = rename.rewrite or rename.new
    elif newer:
        message += f"; the first known release that has it is {newer[0].version}"
    if suggestion is None and not newer:
        near = difflib.get_close_matches(name, release.flags, n=1, cutoff=0.75)
        suggestion = f"did you mean {near[0]}?" if near else None
    return FlagProblem(
        flag=name, kind="unknown", severity="refuse", message=message, suggestion=suggestion
    )


def _still_takes(release: Release, advice: str) -> bool:
    """Return whether every flag, and value of it, that SGLang's ADVICE names is in RELEASE.

    What 0.5.19 said to write instead may itself be gone later.
    """
    for name, value in re.findall(r"--([a-z0-9-]+)(?:[= ]([a-z0-9_]+))?", advice):
        flag = release.flags.get(name)
        if flag is None:
            return False
        if "=" + value in advice and value and flag.choices and value not in flag.choices:
            return False
    return bool(re.search(r"--[a-z]", advice))


def _value_problems(flag: Flag, value: object) -> list[FlagProblem]:
    def problem(message: str, suggestion: str | None = None) -> list[FlagProblem]:
        return [
            FlagProblem(
                flag=flag.name,
                kind="value",
                severity="refuse",
                message=f"--{flag.name} {message}",
                suggestion=suggestion,
            )
        ]

    if value is None:
        return problem("has no value", "give one or leave the line out")
    if flag.takes in ("switch", "toggle", "none"):
        if not isinstance(value, bool):
            return problem("is a switch", "write true or false")
        return []
    items = list(value) if isinstance(value, list | tuple) else [value]
    if flag.takes in ("value", "optional") and isinstance(value, list | tuple):
        return problem("takes one value, not a list")
    number = {"int": int, "float": float}.get(flag.type)
    if number is not None:
        for item in items:
            try:
                if isinstance(item, bool):
                    raise ValueError
                number(str(item))
            except ValueError:
                return problem(f"takes a number ({flag.type}), not {item!r}")
    unlisted = [str(i) for i in items if str(i) not in flag.choices] if flag.choices else []
    if unlisted:
        near = difflib.get_close_matches(unlisted[0], flag.choices, n=1)
        return [
            FlagProblem(
                flag=flag.name,
                kind="choice",
                severity="warn",
                message=f"--{flag.name} {unlisted[0]} is not among {', '.join(flag.choices)}",
                suggestion=f"did you mean {near[0]}?" if near else None,
            )
        ]
    return []


def environment_problems(release: Release, env: Mapping[str, str]) -> list[EnvironmentProblem]:
    """Return the variables of ENV that are dangerous or useless with this release, by name."""
    out = []
    for rule in release.environment:
        if rule.name not in env:
            continue
        if rule.when_value is not None and env[rule.name].strip().lower() not in rule.when_value:
            continue
        out.append(
            EnvironmentProblem(
                name=rule.name,
                severity=rule.severity,
                message=f"{rule.name}: {rule.why}",
                suggestion=rule.instead,
            )
        )
    return sorted(out, key=lambda p: p.name)


def defects_touched(
    release: Release,
    arguments: Mapping[str, object],
    env: Mapping[str, str],
    runtime: Runtime | None = None,
) -> list[Defect]:
    """Return the release's defects that a service with these arguments and variables meets.

    With RUNTIME None the defects of one runtime alone are left out.
    """
    given: dict[str, object] = {}
    for name, value in arguments.items():
        if is_given(value):
            flag = release.flags.get(normalise_flag(name))
            given[flag.canonical if flag else normalise_flag(name)] = value
    return [d for d in release.defects if _touches(d.when, given, env, runtime)]


def _touches(
    when: When, given: Mapping[str, object], env: Mapping[str, str], runtime: Runtime | None
) -> bool:
    def holds(values: Mapping[str, object], name: str, condition: Condition | None) -> bool:
        return name in values and _satisfies(values[name], condition)

    return (
        (when.runtime is None or when.runtime == runtime)
        and all(holds(given, n, c) for n, c in when.flags.items())
        and (not when.flags_any or any(holds(given, n, c) for n, c in when.flags_any.items()))
        and not any(n in given for n in when.flags_absent)
        and all(holds(env, n, c) for n, c in when.env.items())
        and not any(n in env for n in when.env_absent)
    )


def _satisfies(value: object, condition: Condition | None) -> bool:
    if condition is None:
        return True
    if condition.any_of is not None:
        return str(value) in condition.any_of
    try:
        number = float(str(value))
    except ValueError:
        return False
    if condition.below is not None:
        return number < condition.below
    return condition.min is not None and number >= condition.min


def cache_environment(release: Release, cache: str, hub: str) -> dict[str, str]:
    """Return the variables that keep everything the release compiles under CACHE, weights in HUB.

    All are given explicitly, also those that SGLANG_CACHE_DIR moves by itself: a variable that is
    inherited would win over it.
    """
    return {c.variable: c.path.format(cache=cache, hub=hub) for c in release.caches}
