"""What a change of release means for one service: flags, defects, caches, minutes.

Pure. What stops the new release from starting is refused elsewhere; this is what the operator
should know before a change that will work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from facts.records import ServiceState
from plans.launch import Launch
from plans.recorded import KERNELS, first_answer_seconds, read_record
from releases.schema import Defect, Flag, Release
from releases.table import (
    UnknownRelease,
    defects_touched,
    get_release,
    is_given,
    normalise_flag,
)


def meaning(launch: Launch, state: ServiceState) -> tuple[str, ...]:
    """Return what it means that a service goes from the release it has to the one of ``launch``.

    Nothing where it has none yet. Of one that stays at its release only that its kernels are
    compiled anew, where another model, driver or argument makes it another build. A release that
    the toolkit does not know is named as such: then nothing is compared.
    """
    before, after = state.launch.get("SGLANG_RELEASE"), launch.decision.release
    if not before or not after:
        return ()
    if before == after:
        build = state.launch.get("SGLANG_BUILD")
        return (_caches(launch, state),) if build and build != launch.build.key else ()
    head = f"from SGLang {before} to {after}"
    try:
        old, new = get_release(before), get_release(after)
    except UnknownRelease:
        return (f"{head}: the toolkit does not know {before}, so what changes is not told",)
    service = launch.service
    given = {name: value for name, value in service.arguments.items() if is_given(value)}
    lines = [*_flags(old, new, given), *_defects(old, new, given, launch)]
    lines.append(_caches(launch, state))
    return tuple(f"{head}: {line}" for line in lines)


def _flags(old: Release, new: Release, given: Mapping[str, Any]) -> list[str]:
    lines = []
    for name in given:
        was, now = (one.flags.get(normalise_flag(name)) for one in (old, new))
        if now is None or was is None:
            continue  # refused, or new to it as it is written now
        if now.deprecated is not None and was.deprecated is None:
            lines.append(f"--{normalise_flag(name)} is deprecated from here on: {now.deprecated}")
        fewer = sorted(_choices(was) - _choices(now)) if _choices(now) else []
        if fewer:
            lines.append(f"--{normalise_flag(name)} no longer takes {', '.join(fewer)}")
    return lines


def _choices(flag: Flag) -> set[str]:
    return set(map(str, flag.choices or ()))


def _defects(old: Release, new: Release, given: Mapping[str, Any], launch: Launch) -> list[str]:
    def touched(release: Release) -> dict[str, Defect]:
        environment = launch.service.environment
        found = defects_touched(release, given, environment, launch.runtime)
        return {one.id: one for one in found}

    had, has = touched(old), touched(new)
    lines = [
        f"a defect of {old.version} that touches it is gone: {one.what}"
        for id, one in had.items()
        if id not in has
    ]
    lines += [
        f"a defect of {new.version} touches it: {one.what} {one.workaround}"
        for id, one in has.items()
        if id not in had
    ]
    return lines


def _caches(launch: Launch, state: ServiceState) -> str:
    build = state.launch.get("SGLANG_BUILD")
    if build == launch.build.key:
        return "it keeps its compiled kernels"
    took = first_answer_seconds(state.record)
    last = f"; its last start took {took} s to the first answer" if took is not None else ""
    if last and read_record(state.record).get(KERNELS) == "kept":
        last += " with kernels that were there: expect more"
    return f"kernels are compiled anew, in a cache of their own{last}"
