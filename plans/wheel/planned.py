"""What of an environment is missing on a node, and why; all of it is said before anything."""

from __future__ import annotations

import json
import re
from typing import Literal, Protocol

from facts.records import Environment, Survey, known
from locks.records import Lock
from plans import paths, text
from plans.decision import Decision
from plans.findings import Findings
from plans.refusals import Caution
from plans.wheel.compilers import cuda_of
from plans.wheel.cuda_home import CudaHome, cuda_home
from plans.wheel.environment import PlannedEnvironment
from plans.wheel.locks import Requirements, requirements_of
from plans.wheel.packages import missing_packages, package_data, python_packages
from plans.wheel.tools import uv_on_node
from plans.wishes import Service, Wishes

LINKS = ("lib64", "lib64/libcudart.so", "lib/stubs/libcuda.so")
"""What is repaired in place in the wheels' CUDA tree; all else is made anew."""


def planned_environment(
    service: Service,
    wishes: Wishes,
    decision: Decision,
    lock: Lock | None,
    survey: Survey,
    found: Findings,
) -> PlannedEnvironment | None:
    """Return the environment of a service, or None where its packages cannot be told.

    Adds to ``found`` what is refused and what is changed. Pure.
    """
    requirements = requirements_of(service, wishes, decision, lock, survey, found)
    if requirements is None:
        return None
    return environment_of(service, requirements, wishes, survey, found)


class Named(Protocol):
    """What an environment is for: a service, or the door."""

    @property
    def name(self) -> str:
        """As people read it."""


def environment_of(
    service: Named,
    requirements: Requirements,
    wishes: Wishes,
    survey: Survey,
    found: Findings,
    of: str = "SGLang",
) -> PlannedEnvironment:
    """Return the environment of a service, and add to ``found`` what is changed and refused.

    Pure. Two services with the same packages share one environment: it is planned with the first.
    """
    name, lock = service.name, requirements.lock
    key = requirements.digest
    cuda = cuda_home(key, lock, survey)
    build, repair, why = _state(key, cuda, survey)
    if survey.environments_unread is not None:
        found.refuse(
            "ENVIRONMENTS_UNREAD",
            name,
            f"{paths.ENVIRONMENTS} could not be looked at ({survey.environments_unread})",
            "to know whether an environment is there and whole",
            f"ls -l {paths.ENVIRONMENTS} on the node, then plan again",
        )
    account = _account(name, survey, found)
    packages = missing_packages(name, requirements, survey, found)
    leftovers, taken_away = _leftovers(survey)
    planned = PlannedEnvironment(
        key=key,
        release=lock.release,
        requirements=requirements.text,
        size=requirements.size,
        python=lock.python,
        cuda_home=cuda,
        packages=tuple(packages),
        mirrors=wishes.mirrors,
        build=build,
        why=why,
        repair=repair,
        account=account,
        bring_uv=build and not uv_on_node(survey),
        cuda=cuda_of(lock),
        architecture=lock.architecture,
        count=len(lock.packages),
        least=sum(not package.marker for package in lock.packages),
        cache=f"{wishes.paths.caches}/uv",
        python_packages=python_packages(survey, lock.python),
        pages=requirements.pages,
        leftovers=leftovers,
        taken_away=taken_away,
        departs=requirements.departs,
        departures=requirements.departures,
        of=of,
    )
    if build:
        _check_room(name, planned, survey, found)
    _tell(name, planned, packages, found)
    return planned


def _state(key: str, cuda: CudaHome | None, survey: Survey) -> tuple[bool, bool, str]:
    """Return whether it is built, whether links alone are repaired, and why."""
    there = survey.environments.get(key)
    if there is None:
        half = any(name.startswith(f"{key}.") for name in survey.environments)
        return True, False, "half-made by a run that was cut" if half else "not on the node"
    why = not_whole(key, there)
    if why is not None:
        return True, False, why
    links = _lost_links(there)
    if cuda is not None and cuda.source == "wheels" and _needs_stub(there, survey):
        links.append("lib/stubs/libcuda.so, and the host has no libcuda.so to link with")
    if links:
        return False, True, f"no {', no '.join(dict.fromkeys(links))}"
    return False, False, "there and whole"


def not_whole(key: str, there: Environment) -> str | None:
    """Say why an environment that is there is made anew, or None where it is whole.

    Links that are made again in place do not count.
    """
    if not known(there.mark):
        return f"half-made: it has no mark ({there.mark})"
    if _marked_key(there) != key:
        return "its mark is of another environment"
    if not known(there.missing) or not known(there.changed):
        return f"whether it is whole is not known ({there.missing}; {there.changed})"
    lost = [part for part in there.missing if not _is_link(part)]
    if lost:
        return f"no {', no '.join(lost)} any more"
    if there.changed:
        more = f" and {len(there.changed) - 3} more" if len(there.changed) > 3 else ""
        return f"its packages were changed: {', '.join(there.changed[:3])}{more}"
    return None


def _lost_links(there: Environment) -> list[str]:
    return [part for part in there.missing if _is_link(part)] if known(there.missing) else []


def _marked_key(there: Environment) -> str | None:
    try:
        key = json.loads(str(there.mark)).get("key")
    except (ValueError, AttributeError, RecursionError):
        return None
    return key if isinstance(key, str) else None


def _is_link(part: str) -> bool:
    return part.partition("/")[2] in LINKS


def _needs_stub(there: Environment, survey: Survey) -> bool:
    tools = survey.toolchain
    has = any(part.endswith("lib/stubs/libcuda.so") for part in there.parts)
    return known(tools.libcuda) and not known(tools.libcuda_link) and not has


def _leftovers(survey: Survey) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what a cut run left: what is discarded, and the keys of what is put back.

    An old one whose place is empty was taken away, and nothing else came there.
    """
    half = re.compile(r"[0-9a-f]{16}\.(new|old)")
    left = sorted(name for name in survey.environments if half.fullmatch(name))
    away = [
        name
        for name in left
        if name.endswith(".old") and name.removesuffix(".old") not in survey.environments
    ]
    return (
        tuple(name for name in left if name not in away),
        tuple(name.removesuffix(".old") for name in away),
    )


def _account(name: str, survey: Survey, found: Findings) -> bool:
    """Return whether the user of wheel runtimes is made; a person's is refused."""
    account = survey.accounts.get(paths.USER)
    if account is not None and account.exists is False:
        return True
    if account is None or not known(account.exists):
        seen = account.exists if account is not None else "the survey has nothing of it"
        found.refuse(
            "ACCOUNT_NOT_OURS",
            name,
            f"whether there is a user {paths.USER} could not be read ({seen})",
            "to know the user that runs the server",
            f"getent passwd {paths.USER} on the node, then plan again",
        )
        return False
    shell = account.shell if known(account.shell) else ""
    if shell.rpartition("/")[2] not in ("nologin", "false") or account.uid == 0:
        found.refuse(
            "ACCOUNT_NOT_OURS",
            name,
            f"user {paths.USER} (uid {account.uid}, home {account.home}) has the shell {account.shell}",
            f"a system user {paths.USER} that nobody logs in as: it runs the server",
            f"rename that user (usermod --login OTHER {paths.USER}), or where nobody uses it: "
            f"usermod --shell /usr/sbin/nologin {paths.USER}",
        )
    return False


def _check_room(name: str, planned: PlannedEnvironment, survey: Survey, found: Findings) -> None:
    """Refuse where an environment has no room; its packages are unpacked into uv's cache, and
    linked from there where both are on one file system, else copied."""
    unpacked = planned.size * package_data()["unpacked"]
    spaces = [survey.spaces.get(paths.OPT), survey.spaces.get(planned.cache.rpartition("/")[0])]
    mounts: set[object] = set()
    for space, what in zip(spaces, (paths.OPT, planned.cache), strict=True):
        if space is None or not known(space.free_bytes) or not known(space.read_only):
            said = (
                f"room and mount of {what} could not be read: making the environment may fail there"
            )
            found.cautions.append(Caution("SPACE_UNKNOWN", said, name))
            continue
        mount = space.mount if known(space.mount) else space.existing
        if space.read_only:
            found.refuse(
                "READ_ONLY",
                name,
                f"{what} lies on {mount}, which is mounted read-only",
                f"a file system that can be written to below {what}",
                f"mount -o remount,rw {mount}",
            )
        if mount in mounts:
            continue
        mounts.add(mount)
        if space.free_bytes < unpacked:
            found.refuse(
                "DISK_FULL",
                name,
                f"{text.size(space.free_bytes)} free on {mount} for {what}",
                f"{text.size(unpacked)}: {text.size(planned.size)} of packages take "
                f"{package_data()['unpacked']} times that when unpacked",
                f"make room: df -h {mount}; old environments are in {paths.ENVIRONMENTS}",
            )


def _tell(
    name: str, planned: PlannedEnvironment, packages: dict[str, str], found: Findings
) -> None:
    if planned.account:
        home = f"user {paths.USER}, no login, home {paths.HOME}"
        _once(found, name, "environment", home, "the server runs as it, not as root")
    for package, why in packages.items():
        _once(found, name, "packages", package, why)
    if planned.leftovers:
        what = f"discard {', '.join(planned.leftovers)}"
        _once(found, name, "environment", what, "left half-made by a run that was cut")
    if planned.taken_away:
        what = f"put {', '.join(planned.taken_away)} back in place"
        _once(found, name, "environment", what, "taken away by a run that was cut")
    if planned.build:
        what = (
            f"{planned.key}: {planned.of} {planned.release} in {planned.count} packages "
            f"({text.size(planned.size)} to download at most), Python {planned.python} with headers"
        )
        _once(found, name, "environment", what, planned.why + _otherwise(planned))
    if planned.repair:
        _once(found, name, "environment", f"{planned.key}: links of its CUDA tree", planned.why)


def _otherwise(planned: PlannedEnvironment) -> str:
    """Say what is installed where uv cannot fetch a Python: the plan names it, as it changes the node."""
    if not planned.python_packages:
        return ""
    names = ", ".join(planned.python_packages)
    return (
        f"; where uv cannot fetch that Python and the node has none with headers, {names} of the "
        "distribution are installed"
    )


def _once(
    found: Findings, name: str, kind: Literal["packages", "environment"], what: str, why: str
) -> None:
    if not any(change.kind == kind and change.what == what for change in found.changes):
        found.change(name, kind, what, why)
