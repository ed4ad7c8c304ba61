"""Whether a node is still the one that an earlier deployment was made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from facts.records import ServiceState, Survey, known
from plans import drift, paths
from plans.deployed import all_deployed
from plans.difference import own_port
from plans.drifted import check_drift
from plans.findings import Findings
from plans.history import plan_of_deployment
from plans.pastdeployment import lacks_of, model_place
from plans.wishes import Service


def check_there(
    survey: Survey, state: ServiceState, number: int, launch: Mapping[str, str], found: Findings
) -> None:
    image = launch.get("SGLANG_IMAGE")
    if image and not _image_is_there(survey, image):
        found.refuse(
            "ROLLBACK_IMAGE_GONE",
            state.name,
            f"Docker's store of this node has {image} no more, or could not be read",
            f"the image of deployment {number}: going back fetches nothing",
            f"docker pull {image}",
        )
    environment = launch.get("SGLANG_ENVIRONMENT", "")
    if environment and (lacks := lacks_of(survey, environment)):
        found.refuse(
            "ROLLBACK_ENVIRONMENT_GONE",
            state.name,
            f"{environment} {lacks}",
            f"the environment of deployment {number}: going back installs nothing",
            "apply with the release that it had: that makes it anew",
        )
    model = model_place(survey, state, number, launch)
    space = survey.spaces.get(model) if model else None
    # Where its own files say no place, they are broken, which was said.
    broken = any(one.code == "DEPLOYMENT_BROKEN" for one in found.refusals)
    if not space.exists if space else not (broken and model is None):
        found.refuse(
            "ROLLBACK_MODEL_GONE",
            state.name,
            f"{model} is not there (the nearest that is: {space.existing})"
            if space
            else f"whether {model or 'its model'} is there could not be read",
            f"the weights of deployment {number}: going back fetches nothing",
            "apply with the model that it had: that fetches it",
        )


def _image_is_there(survey: Survey, image: str) -> bool:
    digest = image.rpartition("@")[2]
    return any(digest in (one.digest, one.config_digest) for one in survey.docker.images)


def check_host(survey: Survey, state: ServiceState, service: Service, found: Findings) -> None:
    if state.unit_file_state == "masked" or state.load_state == "masked":
        unit = paths.unit_of(state.name)
        found.refuse(
            "UNIT_MASKED",
            state.name,
            f"{unit} is masked",
            "a unit that may start",
            f"systemctl unmask {unit}",
        )
    check_drift(service, survey, state, found)
    if own_port(state) == service.port or not known(survey.listeners):
        return
    for listener in survey.listeners:
        if listener.port == service.port and drift.overlap(listener.address, service.address):
            who = listener.process if known(listener.process) else "a process"
            found.refuse(
                "PORT_TAKEN",
                state.name,
                f"{who} listens on {listener.address} port {listener.port}",
                f"port {service.port} free for {state.name}, as it was",
                f"stop that process: ss -ltnp 'sport = :{service.port}'",
            )
            return


def check_gpus_of_others(
    survey: Survey, state: ServiceState, number: int, plan: Mapping[str, Any], found: Findings
) -> None:
    """Refuse where a service that came since sits on its GPUs; shared before, they may be again."""
    wanted = _gpus(plan)
    held = (
        _gpus(plan_of_deployment(survey, state, state.current)) if known(state.current) else set()
    )
    for name, other in all_deployed(survey).items():
        if name == state.name:
            continue
        theirs = _gpus(plan_of_deployment(survey, other.state, other.number))
        if taken := sorted((wanted & theirs) - held):
            found.refuse(
                "ROLLBACK_GPUS_TAKEN",
                state.name,
                f"deployment {number} used {', '.join(taken)}, which {name} uses now",
                "its GPUs free, as they were",
                f"move {name} to other GPUs first, or apply {state.name} with others",
            )


def _gpus(plan: Mapping[str, Any]) -> set[str]:
    return {str(one) for one in plan.get("gpus") or ()}
