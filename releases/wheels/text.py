"""A lock of packages as text: a requirements file that pip and uv take as it is.

Its head, in comments, says what it is for and how it was made, where it departs from what SGLang
asks for, and what could not be resolved. A package is

    NAME==VERSION \\
        --hash=sha256:...
        # FILE, N bytes

Nothing else may stand in it: no option, no address, no package without a hash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from pydantic import ValidationError

from releases.schema import Record
from releases.wheels.records import Departure, Package, Unresolved, WheelLock

HEAD = ("release", "architecture", "python", "glibc", "device", "cuda", "as-of", "uv", "data")
MAY_MISS = ("device", "cuda", "data")
"""A lock for the GPU names no device; one for the CPU no CUDA; an operator's own no data."""
_PACKAGE = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[^ ;\\]+)(?: ; (?P<marker>.+?))? \\")
_HASH = re.compile(r"    --hash=(?P<hash>sha256:[0-9a-f]{64})(?P<more> \\)?")
_FILE = re.compile(r"    # (?P<file>\S+), (?:(?P<size>\d+) bytes|size not given)")
_FIELD = re.compile(r"# (?P<key>[a-z-]+): (?P<value>\S.*)")
_INNER = re.compile(r"#   (?P<key>[a-z]+): (?P<value>\S.*)")

Entry = TypeVar("Entry", bound=Record)


class LockDamaged(ValueError):
    """A lock is not as it was written: the line, and what is wrong with it."""


def write_lock(lock: WheelLock) -> str:
    """Return a lock as text; `read_lock` gives the same record back."""
    on = f"with CUDA {lock.cuda}" if lock.device == "gpu" else "on the CPU"
    out = [
        f"# SGLang {lock.release} {on} for Python {lock.python} on "
        f"{lock.architecture}: {len(lock.packages)} packages, {lock.size / 1e9:.1f} GB to download.",
        *_made_by(lock),
        "# It is complete, so it is installed without asking what packages require of each other:",
        "#   uv pip install --no-deps --require-hashes --only-binary :all: --requirement FILE",
        "#",
    ]
    head = {key: getattr(lock, key.replace("-", "_")) for key in HEAD}
    if lock.device == "gpu":
        del head["device"]
    out += [f"# {key}: {value}" for key, value in head.items() if value is not None]
    for gone in lock.departures:
        out += ["#", f"# departure: {gone.package} {gone.here}"]
        out += _inner(without=gone.without, reason=gone.reason, since=gone.since, link=gone.link)
    for open_ in lock.unresolved:
        out += ["#", f"# unresolved: {open_.name} {open_.version}"]
        out += _inner(reason=open_.reason, command=open_.command, link=open_.link)
    out.append("")
    for package in lock.packages:
        marker = f" ; {package.marker}" if package.marker else ""
        out.append(f"{package.name}=={package.version}{marker} \\")
        out += [f"    --hash={one} \\" for one in package.hashes[:-1]]
        out.append(f"    --hash={package.hashes[-1]}")
        size = "size not given" if package.size is None else f"{package.size} bytes"
        out.append(f"    # {package.file}, {size}")
    return "\n".join(out) + "\n"


def _made_by(lock: WheelLock) -> list[str]:
    if lock.data is None:
        return ["# Written by a program. Run it again instead of editing."]
    return [
        "# Written by a program from releases/data/wheels.yaml. Run it again instead of editing:",
        f"#   python -m releases.tools.lock_wheels {lock.release} --as-of {lock.as_of}",
    ]


def _inner(**fields: str) -> list[str]:
    return [f"#   {key}: {value}" for key, value in fields.items()]


def read_lock(text: str) -> WheelLock:
    """Return the lock that TEXT is.

    Raises LockDamaged, with the number of the line, for anything that `write_lock` would not have
    written: an option, an address, a package without a hash, or one that stands twice.
    """
    lines = list(enumerate(text.removesuffix("\n").split("\n"), 1))
    cut = next((at for at, (_, line) in enumerate(lines) if not line.startswith("#")), len(lines))
    fields, departures, unresolved = _read_head(lines[:cut])
    packages = tuple(_read_packages(iter(lines[cut:])))
    names = [p.name for p in packages]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise LockDamaged(f"these packages stand twice: {', '.join(twice)}")
    if names != sorted(names):
        raise LockDamaged("the packages are not in the order of their names")
    missing = [key for key in HEAD if key not in fields and key not in MAY_MISS]
    if missing:
        raise LockDamaged(f"the head does not say: {', '.join(missing)}")
    return _record(
        WheelLock,
        len(lines),
        **{key.replace("-", "_"): value for key, value in fields.items()},
        departures=tuple(departures),
        unresolved=tuple(unresolved),
        packages=packages,
    )


def _record(kind: type[Entry], number: int, /, **fields: Any) -> Entry:
    try:
        return kind(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise LockDamaged(f"line {number}: {where}: {first['msg']}") from None


def _read_head(
    lines: Iterable[tuple[int, str]],
) -> tuple[dict[str, str], list[Departure], list[Unresolved]]:
    """Return the fields, the departures and what is unresolved. Other comments are for people."""
    fields: dict[str, str] = {}
    blocks: list[tuple[int, str, str, dict[str, str]]] = []
    inside = False
    for number, line in lines:
        inner = _INNER.fullmatch(line)
        if inside and inner is not None:
            blocks[-1][3][inner["key"]] = inner["value"]
            continue
        inside = False
        field = _FIELD.fullmatch(line)
        if field is None:
            continue
        if field["key"] in ("departure", "unresolved"):
            blocks.append((number, field["key"], field["value"], {}))
            inside = True
        elif field["key"] in HEAD:
            if field["key"] in fields:
                raise LockDamaged(f"line {number}: {field['key']} stands twice")
            fields[field["key"]] = field["value"]
    departures, unresolved = [], []
    for number, kind, subject, inner_fields in blocks:
        name, _, rest = subject.partition(" ")
        if kind == "departure":
            departures.append(_record(Departure, number, package=name, here=rest, **inner_fields))
        else:
            unresolved.append(_record(Unresolved, number, name=name, version=rest, **inner_fields))
    return fields, departures, unresolved


def _read_packages(lines: Iterator[tuple[int, str]]) -> Iterator[Package]:
    for number, line in lines:
        if not line:
            continue
        head = _PACKAGE.fullmatch(line)
        if head is None:
            raise LockDamaged(f"line {number}: not a package with its version and hash: {line!r}")
        hashes: list[str] = []
        more = True
        while more:
            number, line = next(lines, (number + 1, ""))
            found = _HASH.fullmatch(line)
            if found is None:
                raise LockDamaged(f"line {number}: {head['name']} has no hash here: {line!r}")
            hashes.append(found["hash"])
            more = found["more"] is not None
        number, line = next(lines, (number + 1, ""))
        file = _FILE.fullmatch(line)
        if file is None:
            raise LockDamaged(f"line {number}: {head['name']}'s file is not named: {line!r}")
        yield _record(
            Package,
            number,
            name=head["name"],
            version=head["version"],
            marker=head["marker"] or "",
            hashes=tuple(hashes),
            file=file["file"],
            size=None if file["size"] is None else int(file["size"]),
        )
