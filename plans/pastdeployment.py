"""What a past deployment says of itself, and whether the node is still the one it was made for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from facts.records import ServiceState, Survey, known
from plans import paths
from plans.gpus import capability_of
from plans.recorded import read_record


def has_served(state: ServiceState, number: int) -> bool:
    """Say whether a deployment has answered once: its gate or a verify has left a file."""
    left = (paths.START_JSON, paths.RECORD_JSON)
    return any(f"{number}/{name}" in state.written for name in left)


def unfit(
    survey: Survey, state: ServiceState, number: int, *, named: bool
) -> tuple[str, str] | None:
    """Return why a deployment is not gone back to, and what is needed; None where nothing is.

    ``named``: the operator asked for this very one; else one whose upgrade failed is not taken.
    """
    which = f"deployment {number} of {state.name}"
    if not has_served(state, number):
        return f"{which} has never answered", "one that has"
    file = survey.files.get(paths.Deployment(state.name, number).file(paths.RECORD_JSON))
    record = read_record(file.text) if file is not None else {}
    if named or record.get("upgrade") != "failed":
        return None
    why = str(record.get("result"))
    return f"an upgrade to {which} failed: {why[:200]}", "one that stood its upgrade, or its number"


def launch_of(survey: Survey, state: ServiceState, number: int) -> dict[str, str]:
    """Return ``launch.env`` of a deployment; empty where it was not or cannot be read."""
    file = survey.files.get(paths.Deployment(state.name, number).file(paths.LAUNCH_ENV))
    if file is None or not known(file.text):
        return {}
    pairs = re.findall(r'^([A-Z_]+)="(.*)"$', file.text, re.MULTILINE)
    return {name: re.sub(r"\\(.)", r"\1", value) for name, value in pairs}


def what_moved(survey: Survey, plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what is another than when a deployment was made, in words: driver and GPUs.

    What cannot be read now counts as moved: unknown is never the same.
    """
    build = plan.get("build")
    build = build if isinstance(build, Mapping) else {}
    told = []
    before = build.get("driver_major")
    driver = survey.nvidia.driver_version
    now = driver.split(".")[0] if known(driver) else None
    if before is not None and before != now:
        told.append(f"the driver was {before} and is {now or driver}")
    gpus = [str(one) for one in plan.get("gpus") or () if isinstance(one, (str, int))]
    there = {one.uuid if known(one.uuid) else str(one.index): one for one in survey.nvidia.gpus}
    gone = [one for one in gpus if one not in there]
    if gone:
        told.append(
            f"{', '.join(gone)} {'is' if len(gone) == 1 else 'are'} no GPU of this node now"
        )
    capabilities = {capability_of(there[one]) for one in gpus if one in there}
    was = build.get("capabilities")
    if not gone and gpus and isinstance(was, list) and was:
        now_is = sorted(one for one in capabilities if known(one))
        if sorted(map(str, was)) != now_is:
            told.append(
                f"its GPUs were of {', '.join(map(str, was))} and are of {', '.join(now_is)}"
            )
    return tuple(told)


def lacks_of(survey: Survey, environment: str) -> str | None:
    """Return why a server may not start from an environment, in words; None where it is whole.

    ``environment``: its directory on the node. What cannot be read counts as not whole.
    """
    made = survey.environments.get(environment.rpartition("/")[2])
    if made is None or not known(made.mark):
        return "is not there any more, or not whole"
    if not known(made.missing) or not known(made.changed):
        return f"may not be whole: that could not be read ({made.missing}; {made.changed})"
    if made.missing:
        return f"is not whole: no {', no '.join(made.missing)} any more"
    if made.changed:
        return f"is not whole: its packages were changed ({', '.join(made.changed[:3])})"
    return None


def model_place(
    survey: Survey, state: ServiceState, number: int, launch: Mapping[str, str]
) -> str | None:
    """Return where the model of a deployment lies on the node; None where that is not known."""
    model, weights = launch.get("SGLANG_MODEL", ""), launch.get("SGLANG_WEIGHTS", "")
    if model.startswith("/"):
        return model
    file = survey.files.get(paths.Deployment(state.name, number).file(paths.SERVER_YAML))
    if not model or not weights or file is None or not known(file.text):
        return None
    lines = (line.partition(": ") for line in file.text.splitlines())
    revision = next((value.strip("\"' ") for key, _, value in lines if key == "revision"), None)
    return paths.snapshot(weights, model, revision) if revision else None
