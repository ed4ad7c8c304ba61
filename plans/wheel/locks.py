"""What a service's environment is installed from: packages with hashes, for one node."""

from __future__ import annotations

from dataclasses import dataclass, field

from facts.records import Survey, known
from locks.records import CUBIN, SHIM, Lock, kernels_key
from plans.decision import Decision
from plans.findings import Findings
from plans.gpus import capability_of
from plans.network import argument
from plans.refusals import Caution
from plans.wheel.kernels import kernels_of, pages, provider_for, target_of, usable
from plans.wishes import Service, Wishes
from releases.wheels import (
    LockDamaged,
    LockProblem,
    Package,
    WheelLock,
    problems,
    read_lock,
    wheel_lock,
    why_not_locked,
    write_lock,
)

COMPILING = (
    "FlashInfer compiles what it lacks at the first start of a build: about 10 seconds a kernel, "
    "minutes in all; later starts find it in the service's cache"
)
"""Measured: 8 to 9 s for one kernel for sm_90a with nvcc 13.0.88, on two cores."""


@dataclass(frozen=True)
class Requirements:
    """What is installed for a service on one node."""

    lock: WheelLock  # the packages with the kernels for the node's GPUs, and no others
    text: str = field(repr=False)  # the same as a requirements file with hashes
    own: str | None = None  # path of the operator's own lock on the controller
    pages: tuple[str, ...] = ()  # of links, for uv's --find-links: FlashInfer's own packages

    @property
    def digest(self) -> str:
        """What names the environment: 16 hexadecimal digits of packages, Python, architecture."""
        return self.lock.digest

    @property
    def size(self) -> int:
        """Bytes to download, as far as known."""
        return self.lock.size

    @property
    def departs(self) -> str | None:
        """Where the lock departs from what SGLang pins, in one line; None where it does not."""
        gone = self.lock.departures
        if self.own is not None:
            return f"installs the packages of {self.own}, the operator's own lock" + (
                f", which says of {len(gone)} how they depart from what SGLang pins (-v)"
                if gone
                else ""
            )
        if not gone:
            return None
        named = ", ".join(f"{one.package} {one.here}" for one in gone[:3])
        more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
        return (
            f"departs from what a plain install of SGLang {self.lock.release} takes: {named}{more} "
            "(each with its reason in the lock: -v)"
        )

    @property
    def departures(self) -> tuple[tuple[str, str], ...]:
        """Each departure: what it is, and why, with a link."""
        return tuple(
            (f"{one.package} {one.here}, not {one.without}", f"{one.reason} ({one.link})")
            for one in self.lock.departures
        )


def requirements_of(
    service: Service,
    wishes: Wishes,
    decision: Decision,
    lock: Lock | None,
    survey: Survey,
    found: Findings,
) -> Requirements | None:
    """Return what is installed for a service, or None where `found` says why nothing may be.

    Refused are a lock that is not there, that fails the checks of `releases/wheels/checks.py`,
    that is for another machine or release, or for the CPU where the service wants a GPU.
    """
    machine = survey.host.architecture
    if decision.release is None or not known(machine):
        return None
    packages = _lock(service, wishes, decision.release, machine, found)
    if packages is None or not _device_fits(service, packages, found):
        return None
    own = wishes.wheel_lock_of(service)
    if packages.device == "cpu":
        return Requirements(packages, write_lock(packages), own.path if own else None)
    whole, links = _with_kernels(service, wishes, packages, lock, decision, found)
    if whole is None or _refused(service, problems(whole, own=own is not None), own is None, found):
        return None
    return Requirements(whole, write_lock(whole), own.path if own else None, links)


def _lock(
    service: Service, wishes: Wishes, release: str, machine: str, found: Findings
) -> WheelLock | None:
    own = wishes.wheel_lock_of(service)
    again = f"python -m releases.tools.lock_wheels {release}"
    if own is not None:
        again = f"make {own.path} again"
    try:
        lock = wheel_lock(release, machine) if own is None else read_lock(own.text or "")
    except LockDamaged as error:
        name = own.path if own else f"the lock of {release}"
        seen = f"{name}: {error}"
        found.refuse("WHEELS_DAMAGED", service.name, seen, "a lock as the program wrote it", again)
        return None
    if lock is None:
        missing = why_not_locked(release, machine)
        _refused(service, [missing] if missing else [], True, found)
        return None
    if own is not None and lock.release != release.removeprefix("v"):
        found.refuse(
            "WHEELS_WRONG_RELEASE",
            service.name,
            f"{own.path} is of SGLang {lock.release}",
            f"a lock of SGLang {release}",
            f"write release: '{lock.release}' beside wheel_lock, or name another lock",
        )
        return None
    if lock.architecture != machine:
        found.refuse(
            "WHEELS_WRONG_PLATFORM",
            service.name,
            f"{own.path if own else 'the lock'} is for {lock.architecture}",
            f"packages for {machine}",
            f"name a lock for {machine} as wheel_lock of this node",
        )
        return None
    if _refused(service, problems(lock, own=own is not None), own is None, found):
        return None
    return lock


def _refused(service: Service, wrong: list[LockProblem], carried: bool, found: Findings) -> bool:
    """Refuse each problem; an operator's own lock is not mended by the toolkit's program."""
    for one in wrong:
        advice = one.advice if carried else "make the lock that wheel_lock names again"
        found.refuse(one.code, service.name, one.seen, one.needed, advice)
    return bool(wrong)


def _device_fits(service: Service, lock: WheelLock, found: Findings) -> bool:
    if lock.device == "gpu" or argument(service, "device") == "cpu":
        return True
    found.refuse(
        "WHEELS_DEVICE",
        service.name,
        "the lock of packages is for the CPU",
        "a lock for the GPU: with torch for CUDA, and its compiler",
        "name a lock for the GPU, or write device: cpu among the arguments of the service",
    )
    return False


def _with_kernels(
    service: Service,
    wishes: Wishes,
    packages: WheelLock,
    lock: Lock | None,
    decision: Decision,
    found: Findings,
) -> tuple[WheelLock | None, tuple[str, ...]]:
    """Return the lock with FlashInfer's kernels for the GPUs that are there, and their pages."""
    wanted = kernels_of(packages)
    if wanted is None or argument(service, "device") == "cpu":
        return packages, ()
    key = kernels_key(*wanted)
    locked = lock.kernels.get(key) if lock is not None else None
    there = {p.name: p for p in usable(locked, packages)} if locked is not None else {}
    own = {p.name: p for p in packages.packages if _is_kernel(p.name)}
    from_index = set(there) - set(own)
    there |= own
    targets = {t: name for name in there if (t := target_of(name)) is not None}
    gpus = sorted({c for c in map(capability_of, decision.gpus) if known(c)})
    chosen = {gpu: provider_for(gpu, targets) for gpu in gpus}
    missing = [gpu for gpu, target in chosen.items() if target is None]
    take = {targets[target] for target in chosen.values() if target is not None}
    if SHIM in there and take:
        take.add(SHIM)
    else:
        # A shim that the lock itself has stays: without a provider it changes nothing.
        take, missing = {SHIM} & set(own), gpus
    if missing and not _may_miss(service, wishes, lock, key, missing, targets, found):
        return None, ()
    if CUBIN in there:
        take.add(CUBIN)
    else:
        text = (
            f"flashinfer-cubin {wanted[0]} is not locked: FlashInfer downloads those kernels when it "
            f"first needs one. To have them: {_command(wishes, lock, key)}"
        )
        found.cautions.append(Caution("CUBINS_MISSING", text, service.name))
    names = sorted(take & from_index)
    links = pages(locked, names, wishes.mirrors.flashinfer) if locked is not None else ()
    return _with(packages, [there[name] for name in sorted(take)]), links


def _may_miss(
    service: Service,
    wishes: Wishes,
    lock: Lock | None,
    key: str,
    missing: list[str],
    targets: dict[str, str],
    found: Findings,
) -> bool:
    """Say what is missing: a caution, or a refusal where the operator wants the kernels."""
    why = lock.why_not(key) if lock is not None else None
    if targets:
        seen = f"{key} has kernels for {', '.join(sorted(targets))}"
        command = "wait for FlashInfer to publish them"
    elif why is not None:
        seen = f"{key} is unresolved: {why.why}"
        command = _command(wishes, lock, key)
    else:
        seen = f"{key} is not locked"
        command = _command(wishes, lock, key)
    wanted = f"precompiled kernels for compute capability {', '.join(missing)}"
    if wishes.jit_cache == "required":
        found.refuse("JIT_CACHE_MISSING", service.name, seen, wanted, command)
        return False
    text = f"{seen}, so there are no {wanted}. {COMPILING}. To have them: {command}"
    found.cautions.append(Caution("JIT_CACHE_MISSING", text, service.name))
    return True


def _command(wishes: Wishes, lock: Lock | None, key: str) -> str:
    """Return what resolves FlashInfer's kernels."""
    why = lock.why_not(key) if lock is not None else None
    command = why.command if why is not None else "sglang-node lock TARGET"
    if wishes.mirrors.flashinfer is not None:
        return command
    return (
        "write mirrors: {flashinfer: URL}, the address that `flashinfer install-cubin-wheel "
        f"--dry-run` prints, then: {command}"
    )


def _is_kernel(name: str) -> bool:
    return name in (SHIM, CUBIN) or target_of(name) is not None


def _with(lock: WheelLock, kernels: list[Package]) -> WheelLock:
    """Return a lock with just these kernels: what it had of them itself for others is left out."""
    rest = [one for one in lock.packages if not _is_kernel(one.name)]
    names = {one.name for one in kernels}
    return lock.model_copy(
        update={
            "packages": tuple(sorted([*rest, *kernels], key=lambda one: one.name)),
            "unresolved": tuple(one for one in lock.unresolved if one.name not in names),
        }
    )
