"""What was deployed of a service, one entry for each deployment that is still on the node."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from facts.records import ServiceState, Survey, known
from plans import paths

MOST_TOLD = 6
"""Differences that one entry names; of more the number is told."""

LONGEST = 60
"""Characters of a value that an entry shows."""


@dataclass(frozen=True)
class Entry:
    """One deployment: what it runs, how its start went, and why it was made."""

    service: str
    number: int
    mark: str  # "current", "previous" or ""
    release: str | None
    runtime: str | None  # "image", "wheel"
    runs: str | None  # the image by digest, or the key of the environment: "wheel 0123456789abcdef"
    build: str | None  # the key of its kernel caches
    made: int | None  # when its plan was written, seconds of Unix time on the node's clock
    verified: int | None  # when its record was written
    result: str  # in words
    first_answer_seconds: int | None
    why: tuple[str, ...]

    HEADER: ClassVar = (
        "service", "number", "mark", "release", "runs", "build", "made", "result", "first answer",
        "why",
    )  # fmt: skip

    @property
    def cells(self) -> tuple[str, ...]:
        """Its cells, as text."""
        seconds = self.first_answer_seconds
        return (
            self.service,
            str(self.number),
            self.mark or "-",
            self.release or "unknown",
            _short(self.runs),
            self.build or "-",
            when(self.made) or "unknown",
            self.result,
            "-" if seconds is None else f"{seconds} s",
            "; ".join(self.why) or "-",
        )

    def as_dict(self) -> dict[str, object]:
        """Return the form in which it stands in JSON documents."""
        return {
            "number": self.number,
            "current": self.mark == "current",
            "previous": self.mark == "previous",
            "release": self.release,
            "runtime": self.runtime,
            "runs": self.runs,
            "build": self.build,
            "made": when(self.made),
            "verified": when(self.verified),
            "result": self.result,
            "first_answer_seconds": self.first_answer_seconds,
            "why": list(self.why),
        }


@dataclass(frozen=True)
class History:
    """The deployments of one service, the newest first."""

    service: str
    entries: tuple[Entry, ...]
    unread: int  # older ones that were not asked for

    def as_dict(self) -> dict[str, object]:
        """Return the form in which it stands in JSON documents."""
        return {
            "name": self.service,
            "deployments": [one.as_dict() for one in self.entries],
            "unread": self.unread,
        }


def histories(survey: Survey, only: tuple[str, ...] = ()) -> list[History]:
    """Return the history of each service that has deployments, or of those named.

    The survey must have been asked for it (``SurveyRequest.history``).
    """
    return [
        history(survey, state)
        for name, state in sorted(survey.services.items())
        if state.deployments and (not only or name in only)
    ]


def history(survey: Survey, state: ServiceState) -> History:
    """Return the history of one service."""
    # Of one that has no file in the survey nothing was asked.
    seen = sorted(_seen(survey, state) & set(state.deployments))
    plans = {number: plan_of_deployment(survey, state, number) for number in seen}
    entries = []
    for number in reversed(seen):
        before = max((n for n in seen if n < number and plans[n]), default=None)
        first = number == min(state.deployments)
        entries.append(_entry(survey, state, number, plans, before, first))
    return History(state.name, tuple(entries), len(state.deployments) - len(seen))


def when(seconds: int | None) -> str | None:
    """Return a time as people and programs read it: ``2026-11-30T03:49:00Z``."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return None


def plan_of_deployment(survey: Survey, state: ServiceState, number: int) -> Mapping[str, Any]:
    """Return ``plan.json`` of a deployment; empty where it was not or cannot be read."""
    return _document(survey, state, number, paths.PLAN_JSON)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Say how the plan of one deployment differs from that of another, in a few words each."""
    told: list[str] = []
    for name, old, new in _changed(_weighed(before), _weighed(after)):
        told.append(f"{name}: {_value(old)} → {_value(new)}")
    if not told:
        told = [
            f"{name} differs"
            for name, old, new in _changed(_files(before), _files(after))
            if old is not None or new is not None
        ]
    if len(told) > MOST_TOLD:
        told = [*told[:MOST_TOLD], f"and {len(told) - MOST_TOLD} more"]
    return tuple(told)


def _entry(
    survey: Survey,
    state: ServiceState,
    number: int,
    plans: Mapping[int, Mapping[str, Any]],
    before: int | None,
    first: bool,
) -> Entry:
    plan = plans[number]
    record = _document(survey, state, number, paths.RECORD_JSON)
    start = _document(survey, state, number, paths.START_JSON)
    image = plan.get("image")
    build = plan.get("build")
    seconds = record.get("first_answer_seconds", start.get("first_answer_seconds"))
    why: tuple[str, ...] = ()
    if not plan:
        why = (f"{paths.PLAN_JSON} of it cannot be read",)
    elif before is not None:
        why = differences(plans[before], plan) or ("made anew, with nothing changed",)
    elif first:
        why = ("the first one",)
    back = record.get("rolled_back_from")
    if isinstance(back, int):
        why = (*why, f"gone back to from {back}")
    return Entry(
        service=state.name,
        number=number,
        mark=_mark(state, number),
        release=_text(plan.get("release")),
        runtime=_text(plan.get("runtime")) or ("image" if isinstance(image, Mapping) else None),
        runs=_runs(plan),
        build=_text(build.get("key")) if isinstance(build, Mapping) else None,
        made=state.written.get(f"{number}/{paths.PLAN_JSON}"),
        verified=state.written.get(f"{number}/{paths.RECORD_JSON}"),
        result=_text(record.get("result"))
        or (
            f"{paths.RECORD_JSON} of it cannot be read"
            if _is_broken(survey, state, number, paths.RECORD_JSON)
            else "never verified"
        ),
        first_answer_seconds=seconds if isinstance(seconds, int) else None,
        why=why,
    )


def _runs(plan: Mapping[str, Any]) -> str | None:
    """Return what a plan runs: an image by digest, or an environment by its key."""
    image, environment = plan.get("image"), plan.get("environment")
    if isinstance(image, Mapping):
        return _text(image.get("run"))
    key = _text(environment.get("key")) if isinstance(environment, Mapping) else None
    return f"wheel {key}" if key else None


def _within(path: Any, key: Any) -> Any:
    """Return a path without the place of its environment: each environment has one of its own."""
    return str(path).partition(f"/{key}/")[2] or path if path and key else path


def _mark(state: ServiceState, number: int) -> str:
    if state.current == number:
        return "current"
    return "previous" if state.previous == number else ""


def _seen(survey: Survey, state: ServiceState) -> set[int]:
    root = f"{paths.deployments_of(state.name)}/"
    words = (path.removeprefix(root).split("/") for path in survey.files if path.startswith(root))
    return {int(parts[0]) for parts in words if len(parts) == 2 and parts[0].isdigit()}


def _document(survey: Survey, state: ServiceState, number: int, name: str) -> Mapping[str, Any]:
    return _read(survey, state, number, name) or {}


def _is_broken(survey: Survey, state: ServiceState, number: int, name: str) -> bool:
    """Say whether a file is there and is no document; one that is not there is not broken."""
    file = survey.files.get(paths.Deployment(state.name, number).file(name))
    there = file.exists if file is not None else f"{number}/{name}" in state.written
    return there and _read(survey, state, number, name) is None


def _read(survey: Survey, state: ServiceState, number: int, name: str) -> Mapping[str, Any] | None:
    file = survey.files.get(paths.Deployment(state.name, number).file(name))
    if file is None or not known(file.text):
        return None
    try:
        found = json.loads(file.text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _weighed(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides how a deployment runs, flat, by the names that an operator knows."""
    service, build = plan.get("service"), plan.get("build")
    flat = dict(_flat(service if isinstance(service, Mapping) else {}))
    flat["release"] = plan.get("release")
    flat["runs"] = _runs(plan)
    environment = plan.get("environment")
    if isinstance(environment, Mapping):
        flat["Python"] = environment.get("python")
        flat["CUDA_HOME"] = _within(environment.get("cuda_home"), environment.get("key"))
        flat["departures"] = environment.get("departures") or None
    flat["GPUs"] = plan.get("gpus")
    flat["driver"] = build.get("driver_major") if isinstance(build, Mapping) else None
    flat["stop deadline"] = plan.get("stop_deadline")
    flat["toolkit"] = plan.get("toolkit")
    return flat


def _flat(mapping: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _files(plan: Mapping[str, Any]) -> dict[str, Any]:
    files = plan.get("files")
    if not isinstance(files, Mapping):
        return {}
    return {str(path).rsplit("/", 1)[1]: sha256 for path, sha256 in files.items() if "/" in path}


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterable[tuple[str, Any, Any]]:
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old != new:
            yield name, old, new


def _value(value: Any) -> str:
    if value is None or value in ({}, []):
        return "none"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        text = ", ".join(value)
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _short(runs: str | None) -> str:
    """Return an image with the beginning of its digest, an environment as it is."""
    if not runs:
        return "unknown"
    name, at, digest = runs.partition("@sha256:")
    return f"{name.rsplit('/', 1)[-1]}@{digest[:12]}" if at else runs.rsplit("/", 1)[-1]
