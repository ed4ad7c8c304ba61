"""What the wheel runtime gives a service on a node, or every reason it gives nothing.

There is no container: no toolkit of NVIDIA's, no compatibility libraries and no
Python of the distribution are needed; the driver, the C library, the CPU
architecture and a C++ compiler decide.
"""

from __future__ import annotations

from dataclasses import dataclass

from facts.records import Survey, Unknown, known
from plans.choice import Choice
from plans.gpus import Chosen
from plans.hostdata import at_least
from plans.hosts import unfinished_of
from plans.images import Offer, known_releases
from plans.memory import given_flags
from plans.ownlock import OwnLock
from plans.picking import pick
from plans.refusals import Refusal
from plans.wheel.compilers import compiler_of
from plans.wheel.offers import known_wheels, packages_of
from plans.wishes import Service, Wishes
from releases.table import RELEASES
from releases.wheels import LockDamaged, WheelLock, read_lock, wheel_lock, why_not_locked
from releases.wheels.records import ARCHITECTURES

OURS = ("PATH", "CUDA_HOME", "CUDA_PATH")
"""Variables that lead the wheel runtime to its programs. In an image they are the image's."""


def wheel_choice(survey: Survey, service: Service, wishes: Wishes) -> Choice:
    """Return what packages would give a service. Pure; what cannot be is a refusal."""
    asked = _asked(survey, service, wishes)
    picked = pick(survey, service, wishes, asked.offers)
    offer = picked.offer or next(iter(asked.offers), None)
    refusals = [
        *unfinished_of(survey, "wheel"),
        *asked.refusals,
        *_c_library(survey, service, offer, asked.lock),
        *picked.refusals,
        *_unnamed(picked.used),
        *_environment(service),
    ]
    on_cpu = given_flags(service, None).get("device") == "cpu"
    if offer is not None and not on_cpu and "toolchain" not in survey.unfinished:
        refusals += compiler_of(survey, offer.cuda, service.name).refusals
    reasons = []
    if picked.offer is not None:
        reasons = [asked.reason.format(release=picked.offer.release), *picked.reasons]
    return Choice(
        runtime="wheel",
        release=offer.release if offer else asked.release,
        picked=picked,
        refusals=tuple(refusals),
        cautions=picked.cautions,
        reasons=tuple(reasons),
        asked=asked.refusals,
    )


def _environment(service: Service) -> list[Refusal]:
    return [
        Refusal(
            "ENVIRONMENT_REFUSED",
            f"environment sets {name} to {value!r}, which the toolkit sets itself",
            f"{name} as the plan works it out: one toolkit that was looked at, and where programs are",
            f"leave {name} out of environment of {service.name}",
            service.name,
        )
        for name, value in service.environment.items()
        if name in OURS
    ]


@dataclass(frozen=True)
class _Asked:
    """The releases that may be taken, in order of preference, and why these."""

    offers: tuple[Offer, ...]
    refusals: tuple[Refusal, ...]
    reason: str
    release: str | None = None  # that was named
    lock: WheelLock | None = None  # the operator's own, in the place of the release's


def _asked(survey: Survey, service: Service, wishes: Wishes) -> _Asked:
    release, architecture = wishes.release_of(service), survey.host.architecture
    release = release.removeprefix("v") if release else None
    if release is not None and release not in RELEASES:
        return _unknown(f"release: {release}", service)
    if not known(architecture) or architecture not in ARCHITECTURES:
        return _Asked((), (), "", release)  # the host is refused for it already
    own = wishes.wheel_lock_of(service)
    if own is not None:
        return _own(own, release, architecture, service)
    there = known_wheels(architecture)
    if release is None:
        return _Asked(there, (), "release {release}: the newest whose packages are locked")
    reason = "release {release}: asked for by name"
    offers = tuple(one for one in there if one.release == release)
    if offers:
        return _Asked(offers, (), reason, release)
    problem = why_not_locked(release, architecture)
    if problem is None:
        return _Asked((), (), reason, release)
    refusal = Refusal(problem.code, problem.seen, problem.needed, problem.advice, service.name)
    return _Asked((), (refusal,), reason, release)


def _unknown(seen: str, service: Service) -> _Asked:
    refusal = Refusal(
        "RELEASE_UNKNOWN",
        seen,
        f"a release that the toolkit knows: {', '.join(known_releases())}",
        "Write one of these, or update the toolkit",
        service.name,
    )
    return _Asked((), (refusal,), "")


def _own(own: OwnLock, release: str | None, architecture: str, service: Service) -> _Asked:
    """Take the lock that the operator names; what else is wrong with it says `plans.wheel.locks`."""

    def refused(code: str, seen: str, needed: str, advice: str) -> _Asked:
        return _Asked((), (Refusal(code, seen, needed, advice, service.name),), "", release)

    try:
        lock = read_lock(own.text or "")
    except LockDamaged as error:
        return refused(
            "WHEELS_DAMAGED",
            f"{own.path}: {error}",
            "a lock as the program wrote it",
            f"make {own.path} again",
        )
    if release not in (None, lock.release):
        return refused(
            "WHEELS_WRONG_RELEASE",
            f"{own.path} is of SGLang {lock.release}",
            f"a lock of SGLang {release}",
            f"write release: '{lock.release}' beside wheel_lock, or name another lock",
        )
    if lock.release not in RELEASES:
        return _unknown(f"{own.path} is of SGLang {lock.release}", service)
    offer = packages_of(lock.release, lock.cuda, architecture)
    return _Asked((offer,), (), f"release {{release}}: that of {own.path}", release, lock)


def _c_library(
    survey: Survey, service: Service, offer: Offer | None, own: WheelLock | None
) -> list[Refusal]:
    architecture, glibc = survey.host.architecture, survey.host.glibc
    if offer is None or not known(architecture):
        return []
    lock = own or wheel_lock(offer.release, architecture)
    if lock is None:
        return []
    needed = f"glibc {lock.glibc} or newer: the packages of SGLang {offer.release} are made for it"
    if not isinstance(glibc, Unknown):
        if at_least(glibc, lock.glibc):
            return []
        return [
            Refusal(
                "WHEEL_GLIBC",
                f"glibc {glibc}",
                needed,
                "Never replace glibc by hand. Write `runtime: image`, which brings its own, or "
                "upgrade the operating system",
                service.name,
            )
        ]
    if "musl" in glibc.text:
        return [
            Refusal(
                "WHEEL_GLIBC",
                f"the C library is musl ({glibc.text})",
                needed,
                "Write `runtime: image`: no package of SGLang is built for musl",
                service.name,
            )
        ]
    return [
        Refusal(
            "WHEEL_GLIBC",
            f"the version of the C library could not be read ({glibc})",
            needed,
            "Ask on the node: getconf GNU_LIBC_VERSION; ldd --version",
            service.name,
        )
    ]


def _unnamed(chosen: tuple[Chosen, ...]) -> list[Refusal]:
    """Refuse a MIG device without a UUID: nothing else names it to a server."""
    lacking = [one.text for one in chosen if one.mig and not known(one.uuid)]
    if not lacking:
        return []
    return [
        Refusal(
            "GPU_NOT_FOUND",
            f"{', '.join(lacking)}: no UUID could be read",
            "the UUID of each MIG device",
            "Read them on the node with `nvidia-smi -L`",
        )
    ]
