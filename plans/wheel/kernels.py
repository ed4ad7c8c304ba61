"""FlashInfer's precompiled kernels: which versions wishes come to, which files a node takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

from packaging.utils import parse_wheel_filename

from locks.records import CUBIN, SHIM, LockedKernels, LockedWheel, cuda_label
from plans.wishes import Wishes
from releases.wheels import LockDamaged, Package, WheelLock, read_lock, wheel_lock
from releases.wheels.data import locked_releases
from releases.wheels.records import ARCHITECTURES
from releases.wheels.wheel_tags import supported

_TARGET = re.compile(r"sm([0-9]{1,2})([0-9])([af]?)")


def kernels_wanted(all_wishes: Iterable[Wishes]) -> tuple[tuple[str, str], ...]:
    """Return FlashInfer's versions and CUDA releases that these wishes may come to, sorted.

    Asked for where the wheel runtime is, and where it may be chosen and FlashInfer's index is
    named. A release that nobody named is the newest that is locked.
    """
    wanted: set[tuple[str, str]] = set()
    for wishes in all_wishes:
        for service in wishes.services:
            runtime = wishes.runtime_of(service)
            if runtime == "image" or (runtime == "auto" and wishes.mirrors.flashinfer is None):
                continue
            locks: list[WheelLock | None] = []
            own = wishes.wheel_lock_of(service)
            with suppress(LockDamaged):  # the plan of its node refuses it
                if own is not None:
                    locks = [read_lock(own.text or "")]
                else:
                    release = wishes.release_of(service) or locked_releases()[-1]
                    locks = [wheel_lock(release, machine) for machine in ARCHITECTURES]
            wanted |= {one for one in map(kernels_of, locks) if one is not None}
    return tuple(sorted(wanted))


def kernels_of(lock: WheelLock | None) -> tuple[str, str] | None:
    """Return FlashInfer's version and the CUDA release of a lock, or None where it has no kernels."""
    flashinfer = lock.package("flashinfer-python") if lock is not None else None
    if lock is None or flashinfer is None or lock.cuda is None:
        return None
    return flashinfer.version, lock.cuda


def provider_for(capability: str, targets: Iterable[str]) -> str | None:
    """Return the target whose kernels a GPU runs best: `sm80` for `8.6`; None where none does.

    FlashInfer's own rule (jit/_cuda_architecture.py of flashinfer-python 0.7.2): with `a` for
    just this capability; with `f`, or neither, for its own and newer minors of the major; the
    exact one first, then `f`, then the newest minor.
    """
    major, minor = (int(part) for part in capability.split("."))
    best: tuple[tuple[int, int], str] | None = None
    for target in targets:
        found = _TARGET.fullmatch(target)
        if found is None:
            continue
        its_major, its_minor, suffix = int(found[1]), int(found[2]), found[3]
        exact = (its_major, its_minor) == (major, minor)
        if its_major != major or its_minor > minor or (suffix == "a" and not exact):
            continue
        rank = 4 if exact and not suffix else {"a": 3, "f": 2, "": 1}[suffix]
        best = max(filter(None, (best, ((rank, its_minor), target))))
    return best[1] if best else None


def target_of(name: str) -> str | None:
    """Return the target of a provider's package: `sm90a`; None for any other package."""
    found = name.removeprefix(f"{SHIM}-")
    return found if found != name and _TARGET.fullmatch(found) else None


def usable(kernels: LockedKernels, lock: WheelLock) -> list[Package]:
    """Return the packages of FlashInfer's index that a lock's Python can install, by name."""
    ranks = supported(lock.python, lock.glibc, lock.architecture)
    best: dict[str, tuple[int, LockedWheel]] = {}
    for wheel in kernels.wheels:
        _, _, _, tags = parse_wheel_filename(wheel.file)
        rank = min((ranks[tag] for tag in tags if tag in ranks), default=None)
        if rank is not None and (wheel.name not in best or rank < best[wheel.name][0]):
            best[wheel.name] = (rank, wheel)
    return [
        Package(
            name=wheel.name,
            version=wheel.version,
            file=wheel.file,
            size=wheel.size_bytes,
            hashes=(wheel.hash,),
        )
        for _, (_, wheel) in sorted(best.items())
    ]


def pages(kernels: LockedKernels, names: Sequence[str], mirror: str | None) -> tuple[str, ...]:
    """Return the pages of links on which FlashInfer's packages stand, one for each.

    On the operator's mirror where there is one, else on the index that the lock was made from.
    """
    base = (mirror or kernels.index).rstrip("/")
    return tuple(
        f"{base}/{name}/" if name == CUBIN else f"{base}/{cuda_label(kernels.cuda)}/{name}/"
        for name in names
    )
