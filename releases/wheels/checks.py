"""What must be true of a lock of packages before anything is installed from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from releases.wheels.data import WheelData, data, policy
from releases.wheels.records import Package, WheelLock
from releases.wheels.wheel_tags import supported

_NAMED_FOR = re.compile(r"-cu(\d{2})(?:-|$)")
_LOCAL_CUDA = re.compile(r"(?:^|\.)cu(\d{2})(\d)(?:\.|$)")


@dataclass(frozen=True)
class LockProblem:
    """Why a lock is refused; the code is one of plans/data/codes.yaml."""

    code: str
    seen: str
    needed: str
    advice: str


def problems(
    lock: WheelLock, there: WheelData | None = None, *, own: bool = False
) -> list[LockProblem]:
    """Return all that is wrong with a lock; nothing where it can be installed and can compile.

    OWN: an operator's lock, which need not follow from the toolkit's data. A lock for the CPU
    compiles nothing: only its release and its files are looked at. Says nothing about the index: whether the files are still there asks
    `python -m releases.tools.lock_wheels --check`.
    """
    there = there or data()
    again = f"python -m releases.tools.lock_wheels {lock.release}"
    if lock.device == "cpu":
        return [*_release(lock, again), *_files(lock, there, again)]
    return [
        *_release(lock, again),
        *_compiler_set(lock, there, again),
        *_torch(lock, there, again),
        *_cuda_mix(lock, there, again),
        *_flashinfer(lock, there, again),
        *_known_bad(lock, there),
        *_files(lock, there, again),
        *(() if own else _made_from(lock, there, again)),
    ]


def disagreements(locks: Sequence[WheelLock]) -> list[LockProblem]:
    """Return the packages that locks of one release hold at different versions.

    A package may be missing for an architecture; where it is in both it is the same.
    """
    out = []
    for other in locks[1:]:
        first = locks[0]
        for package in first.packages:
            twin = other.package(package.name)
            if twin is not None and twin.version != package.version:
                out.append(
                    LockProblem(
                        "WHEELS_ARCHITECTURES_DIFFER",
                        f"{package.name} {package.version} on {first.architecture}, "
                        f"{twin.version} on {other.architecture}",
                        "one version on all nodes of a release",
                        f"python -m releases.tools.lock_wheels {first.release}",
                    )
                )
    return out


def files_of(lock: WheelLock, again: str) -> list[LockProblem]:
    """Return what is wrong with the files of a lock of any packages, for its platform."""
    return list(_files(lock, data(), again))


def minor(version: str) -> str:
    """Return major and minor of a package's version: `13.0` of `13.0.88`."""
    parsed = Version(version)
    return f"{parsed.major}.{parsed.minor}"


def _at(package: Package) -> str:
    return f"{package.name} {package.version}"


def _release(lock: WheelLock, again: str) -> Iterator[LockProblem]:
    sglang = lock.package("sglang")
    if sglang is None or sglang.version != lock.release:
        yield LockProblem(
            "WHEELS_WRONG_RELEASE",
            f"the lock of {lock.release} holds {'no sglang' if sglang is None else _at(sglang)}",
            f"sglang {lock.release}",
            again,
        )


def _compiler_set(lock: WheelLock, there: WheelData, again: str) -> Iterator[LockProblem]:
    wanted = _toolkit(lock, there)
    if not wanted:
        yield LockProblem(
            "WHEELS_COMPILER_SET",
            f"nobody wrote down the compiler set of CUDA {lock.cuda}",
            "an entry under `toolkits` in releases/data/wheels.yaml",
            again,
        )
    wrong = []
    for name, version in wanted.items():
        package = lock.package(name)
        if package is None:
            wrong.append(f"no {name}")
        elif package.version != version:
            wrong.append(_at(package))
    if wrong:
        yield LockProblem(
            "WHEELS_COMPILER_SET",
            ", ".join(wrong),
            f"of CUDA {lock.cuda}: " + ", ".join(f"{n} {v}" for n, v in wanted.items()),
            again,
        )


def _toolkit(lock: WheelLock, there: WheelData) -> Mapping[str, str]:
    return next((t.compiler for t in there.toolkits if t.cuda == lock.cuda), {})


def _torch(lock: WheelLock, there: WheelData, again: str) -> Iterator[LockProblem]:
    torch = lock.package("torch")
    missing = [n for n in there.checks.torch_for_gpu_requires if lock.package(n) is None]
    local = "" if torch is None else Version(torch.version).local or ""
    if torch is None or local.split(".")[0] == "cpu" or missing:
        seen = "no torch" if torch is None else _at(torch)
        without = f" without {', '.join(missing)}" if missing else ""
        yield LockProblem(
            "WHEELS_CPU_TORCH",
            f"{seen}{without}",
            f"torch as it is built for CUDA {lock.cuda}, with the libraries it requires",
            again,
        )
    of_torch = [lock.package("cuda-toolkit"), lock.package("nvidia-cuda-runtime")]
    other = [_at(p) for p in of_torch if p is not None and minor(p.version) != lock.cuda]
    label = _LOCAL_CUDA.search(local)
    if label is not None and f"{label[1]}.{label[2]}" != lock.cuda:
        other.append(f"torch {local}")
    if other:
        yield LockProblem(
            "WHEELS_TORCH_CUDA",
            f"torch brings {', '.join(other)}",
            f"torch and the compiler set of one CUDA release, {lock.cuda}",
            again,
        )


def _cuda_mix(lock: WheelLock, there: WheelData, again: str) -> Iterator[LockProblem]:
    major = str(lock.cuda).partition(".")[0]
    known = {*_toolkit(lock, there)}
    wrong = []
    for package in lock.packages:
        version = Version(package.version)
        named = _NAMED_FOR.search(package.name)
        label = _LOCAL_CUDA.search(version.local or "")
        if (
            (named is not None and named[1] != major)
            or (label is not None and f"{label[1]}.{label[2]}" != lock.cuda)
            or (package.name in there.checks.only_the_major and str(version.major) != major)
            or (
                package.name in there.checks.numbered_like_cuda
                and package.name not in known  # those are told as the compiler set
                and minor(package.version) != lock.cuda
            )
        ):
            wrong.append(_at(package))
    if wrong:
        yield LockProblem(
            "WHEELS_MIX_CUDA",
            ", ".join(wrong),
            f"packages of CUDA {lock.cuda} alone",
            f"hold them in releases/data/wheels.yaml, then {again}",
        )


def _flashinfer(lock: WheelLock, there: WheelData, again: str) -> Iterator[LockProblem]:
    first, *others = there.checks.flashinfer
    main = lock.package(first)
    if main is None:
        yield LockProblem("WHEELS_FLASHINFER", f"no {first}", f"{first} in the lock", again)
        return
    # A part and what it is made of: flashinfer-jit-cache, flashinfer-jit-cache-sm90a.
    found = [(p.name, p.version) for p in lock.packages if _part_of(p.name, others)]
    found += [(u.name, u.version) for u in lock.unresolved if _part_of(u.name, others)]
    wrong = [f"{n} {v}" for n, v in found if Version(v).public != Version(main.version).public]
    wrong += [f"no {name}" for name in others if name not in {n for n, _ in found}]
    if wrong:
        yield LockProblem(
            "WHEELS_FLASHINFER",
            f"{_at(main)} beside {', '.join(wrong)}",
            f"{', '.join(others)} at {main.version}, locked or named as unresolved",
            again,
        )


def _known_bad(lock: WheelLock, there: WheelData) -> Iterator[LockProblem]:
    for bad in there.checks.known_bad:
        for package in lock.packages:
            if (
                _part_of(package.name, [bad.package])
                and Version(package.version).public == bad.version
            ):
                yield LockProblem(
                    "WHEELS_KNOWN_BAD",
                    f"{_at(package)}: {bad.reason} ({bad.link})",
                    "builds that are not known to be broken",
                    bad.instead,
                )


def _part_of(name: str, parts: Sequence[str]) -> bool:
    return any(name == part or name.startswith(f"{part}-") for part in parts)


def _files(lock: WheelLock, there: WheelData, again: str) -> Iterator[LockProblem]:
    limit = there.checks.placeholder.bytes_below
    empty, foreign = [], []
    usable = supported(lock.python, lock.glibc, lock.architecture)
    for package in lock.packages:
        try:
            _, _, _, tags = parse_wheel_filename(package.file)
        except InvalidWheelFilename:
            empty.append(f"{_at(package)}: {package.file} is not a wheel")
            continue
        if package.size is None:
            # FlashInfer's own index is a plain page of links, which says no sizes.
            if not _part_of(package.name, there.checks.flashinfer):
                empty.append(f"{_at(package)}: of unknown size")
        elif package.size < limit:
            empty.append(f"{_at(package)}: {package.size} bytes")
        if not any(tag in usable for tag in tags):
            foreign.append(f"{_at(package)}: {package.file}")
    if empty:
        yield LockProblem(
            "WHEELS_PLACEHOLDER",
            ", ".join(empty),
            f"wheels with something in them, of {limit} bytes or more",
            f"override them in releases/data/wheels.yaml, then {again}",
        )
    if foreign:
        yield LockProblem(
            "WHEELS_WRONG_PLATFORM",
            ", ".join(foreign),
            f"wheels for Python {lock.python} on {lock.architecture} with glibc {lock.glibc}",
            again,
        )


def _made_from(lock: WheelLock, there: WheelData, again: str) -> Iterator[LockProblem]:
    now = policy(lock.release, there)
    if now is None or now.digest != lock.data:
        made = "releases/data/wheels.yaml"
        yield LockProblem(
            "WHEELS_LOCK_OUTDATED",
            f"the lock of {lock.release} was made from another state of {made}"
            if now is not None
            else f"{made} says nothing of a lock for {lock.release}",
            "a lock that follows from its data",
            again,
        )
