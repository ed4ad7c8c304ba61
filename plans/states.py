"""The state of each service on a node, and what has drifted, from its survey alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from facts.records import ServiceState, Survey, known
from plans import drift, paths
from plans.ends import end_of
from plans.managed import has_sum, is_read, written_files


@dataclass(frozen=True)
class ServiceLine:
    """One line of ``status``."""

    node: str
    name: str
    release: str
    runtime: str
    state: str
    since: str
    drift: tuple[str, ...]
    bad: bool  # it should serve and does not

    HEADER: ClassVar = ("node", "service", "release", "runtime", "state", "since", "drift")

    @property
    def cells(self) -> tuple[str, ...]:
        """Its cells, as text."""
        drift = "; ".join(self.drift) or "none"
        return (self.node, self.name, self.release, self.runtime, self.state, self.since, drift)

    def as_dict(self) -> dict[str, object]:
        """Return the form in which it stands in JSON documents."""
        return {
            "name": self.name,
            "release": self.release,
            "runtime": self.runtime,
            "state": self.state,
            "since": self.since,
            "drift": list(self.drift),
            "ok": not self.bad,
        }


def service_lines(survey: Survey) -> list[ServiceLine]:
    """Return one line for each service on a node, by name."""
    return [_line(survey, state) for _, state in sorted(survey.services.items())]


def _line(survey: Survey, state: ServiceState) -> ServiceLine:
    word, bad = state_word(state)
    end = end_of(state)
    if bad and end is not None and state.active_state != "active":
        word = f"{word} ({end.sentence})"
    return ServiceLine(
        node=survey.node,
        name=state.name,
        release=state.launch.get("SGLANG_RELEASE", "unknown"),
        runtime=state.launch.get("SGLANG_RUNTIME", "unknown"),
        state=word,
        since=state.state_since if known(state.state_since) and state.state_since else "-",
        drift=tuple(drifted(survey, state)),
        bad=bad,
    )


def state_word(state: ServiceState) -> tuple[str, bool]:
    """Return the state of a service in a few words, and whether it should serve and does not."""
    active, answer = state.active_state, state.answer
    result = f": {state.result}" if known(state.result) and state.result != "success" else ""
    if active == "active":
        if known(answer) and answer.ready == 200:
            return "ready", False
        seen = answer.ready if known(answer) else answer
        return f"active, not ready ({seen})", True
    if active == "activating":
        if state.sub_state == "auto-restart":
            return f"restarting after a failure{result}", True
        told = state.status_text if known(state.status_text) and state.status_text else ""
        return told if told.startswith(
            "starting"
        ) else f"starting{': ' + told if told else ''}", False
    if active == "deactivating":
        return "stopping: requests in flight are finished", False
    if active == "failed":
        return f"failed{result}", True
    # It shall serve: stopped by hand, it is where somebody left it, and not well.
    # Unknown is never well.
    return f"{active}", not known(active) or (active == "inactive" and known(state.current))


def drifted(survey: Survey, state: ServiceState) -> list[str]:
    """Return what is not as the toolkit left it, each in a few words."""
    nowhere = drift.leads_nowhere(state)
    found = [nowhere] if nowhere is not None else []
    for path, sha256 in written_files(state).items():
        there = survey.files.get(path)
        if there is not None and is_read(there) and not has_sum(there, sha256):
            found.append(f"edited: {path}")
        elif there is not None and not there.exists:
            found.append(f"gone: {path}")
    others = [p for p in state.drop_ins if p != paths.drop_in(state.name)]
    if others:
        found.append(f"your drop-ins: {', '.join(path.rsplit('/', 1)[1] for path in others)}")
    found += [f"{path.rsplit('/', 1)[1]} {what}" for path, what in drift.overrides(state).items()]
    unit = drift.overriding_unit(survey, state)
    if unit is not None:
        found.append(f"overridden: {unit}")
    if state.need_daemon_reload is True:
        found.append("needs daemon-reload")
    if state.unit_file_state not in ("enabled", "masked") and known(state.unit_file_state):
        found.append("does not start with the node")
    if state.unit_file_state == "masked" or state.load_state == "masked":
        found.append("masked")
    if known(state.restarts) and state.restarts > 0:
        end = end_of(state)
        why = f": {end.sentence}" if end is not None else ""
        found.append(f"restarted {state.restarts} times by itself{why}")
    return found + _what_runs(survey, state)


def _what_runs(survey: Survey, state: ServiceState) -> list[str]:
    found = drift.restart_reasons(survey, state)
    stopped = drift.container_stopped(survey, state)
    if stopped is not None:
        found.append(stopped)
    taker = drift.port_taken_over(survey, state)
    if taker is not None:
        found.append(f"port {taker.port} taken over by {taker.process}")
    image = drift.image_deleted(survey, state)
    if image is not None:
        found.append(f"image deleted: {image}")
    environment = drift.environment_changed(survey, state)
    if environment is not None:
        found.append(environment)
    driver = drift.driver_moved(survey, state)
    if driver is not None:
        found.append(f"driver changed since the build: {driver[0]} to {driver[1]}")
    return found
