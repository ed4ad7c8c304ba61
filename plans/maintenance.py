"""Maintenance of a node: drained for a reboot, then well again, then back.

A mark on the node says what it was drained for and what it was then; everything else is told from
a survey. A node is back when it has booted anew, its driver, its fabric and its GPUs are well, and
the services that were drained have answered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from facts.records import Survey, known
from plans import paths
from plans.deployment import render
from plans.gpus import called, problem_of
from plans.history import when
from plans.hosts import driver_refusals, fabric_refusals
from plans.onnode import base64_lines
from plans.refusals import Caution
from plans.states import service_lines

BOOTED = "booted anew"


@dataclass(frozen=True)
class Mark:
    """What a node was drained for, and what it was then."""

    purpose: str  # "reboot"
    boot_id: str
    since: int  # of the node's clock, seconds of Unix time
    services: tuple[str, ...]
    driver: str | None = None
    gpus: tuple[str, ...] = ()  # UUIDs

    def text(self) -> str:
        """Return it as it stands on the node."""
        return json.dumps({"schema": 1, **vars(self)}, indent=1, default=list) + "\n"


@dataclass(frozen=True)
class Step:
    """One thing that must be so before the node is back."""

    what: str
    ok: bool
    seen: str

    def as_dict(self) -> dict[str, object]:
        """Return the form in which it stands in JSON documents."""
        return {"what": self.what, "ok": self.ok, "seen": self.seen}


class MarkError(ValueError):
    """A mark that cannot be read, or a node of which none can be made; the text says why."""


def mark_of(survey: Survey) -> Mark | None:
    """Return the mark of a node, or None where it has none. Raises MarkError."""
    file = survey.files.get(paths.MAINTENANCE)
    if file is None or not file.exists:
        return None
    try:
        found: Mapping[str, Any] = json.loads(file.text) if known(file.text) else {}
        return Mark(
            str(found["purpose"]),
            str(found["boot_id"]),
            int(found["since"]),
            tuple(map(str, found["services"])),
            found.get("driver"),
            tuple(map(str, found.get("gpus", ()))),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MarkError(
            f"{paths.MAINTENANCE} cannot be read: take it away with drain --call-off"
        ) from error


def new_mark(survey: Survey, services: tuple[str, ...]) -> Mark:
    """Return the mark of a node that is drained for a reboot. Raises MarkError.

    What a mark of the same boot names already stays in it.
    """
    boot, since = survey.host.boot_id, survey.host.time_epoch
    if not known(boot) or not known(since):
        raise MarkError(f"which boot this is could not be read: {boot}")
    try:
        before = mark_of(survey)
    except MarkError:
        before = None
    if before is not None and before.boot_id == boot:
        services = tuple(sorted({*services, *before.services}))
        since = before.since
    driver = survey.nvidia.driver_version
    return Mark(
        "reboot",
        boot,
        since,
        services,
        driver if known(driver) else None,
        tuple(one.uuid for one in survey.nvidia.gpus if known(one.uuid)),
    )


def steps(survey: Survey, mark: Mark) -> tuple[Step, ...]:
    """Return what must be so before a node is back, and what of it is."""
    boot = survey.host.boot_id
    booted = known(boot) and boot != mark.boot_id
    found = [Step(BOOTED, booted, "yes" if booted else "not since it was drained")]
    driver = survey.nvidia.driver_version
    was = f", it was {mark.driver}" if mark.driver and mark.driver != driver else ""
    found.append(_judged("driver and libraries", driver_refusals(survey), f"{driver}{was}"))
    found.append(_judged("fabric", fabric_refusals(survey), "ready, or none"))
    found.append(_gpus(survey, mark))
    lines = {line.name: line.state for line in service_lines(survey)}
    for name in mark.services:
        state = lines.get(name, "gone")
        found.append(Step(name, state == "ready", state))
    return tuple(found)


def is_well(found: tuple[Step, ...], mark: Mark) -> bool:
    """Say whether the node itself is back, whatever its services are."""
    return all(one.ok for one in found if one.what not in mark.services)


def anew(found: tuple[Step, ...]) -> bool:
    """Say whether the node has booted since it was drained."""
    return any(one.ok for one in found if one.what == BOOTED)


def _judged(what: str, refusals: list[Any], well: str) -> Step:
    return Step(what, not refusals, "; ".join(one.seen for one in refusals) or well)


def _gpus(survey: Survey, mark: Mark) -> Step:
    there = {one.uuid for one in survey.nvidia.gpus}
    bad = [f"{uuid} is not there any more" for uuid in mark.gpus if uuid not in there]
    for gpu in survey.nvidia.gpus:
        if (problem := problem_of(gpu)) is not None:
            bad.append(f"{called(gpu)}: {problem.seen}")
    return Step("GPUs", not bad, "; ".join(bad) or f"{len(there)} healthy")


def sentence(mark: Mark) -> str:
    """Say in a few words what a node was drained for, and since when."""
    return f"drained for a {mark.purpose} since {when(mark.since)}: {', '.join(mark.services)}"


def maintenance_cautions(survey: Survey) -> tuple[Caution, ...]:
    """Return what who plans for a node in maintenance should know."""
    try:
        mark = mark_of(survey)
    except MarkError as error:
        return (Caution("IN_MAINTENANCE", str(error)),)
    if mark is None:
        return ()
    said = "sglang-node verify takes the mark away once all is well; drain --call-off does at once"
    return (Caution("IN_MAINTENANCE", f"the node is {sentence(mark)}; {said}"),)


def write_mark(mark: Mark) -> str:
    """Return the program that marks a node."""
    return render(
        "maintenance.sh.j2",
        purpose=mark.purpose,
        mark=paths.MAINTENANCE,
        text=base64_lines(mark.text()),
        units=[paths.unit_of(name) for name in mark.services],
    )


def remove_mark() -> str:
    """Return the program that takes the mark of a node away."""
    return render("maintenance.sh.j2", purpose="nothing", mark=paths.MAINTENANCE, text="", units=[])
