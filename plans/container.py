"""The image runtime's part of a deployment: the unit around ``docker run``, and what it reads."""

from __future__ import annotations

from functools import cache

from plans import arguments, paths, quoting
from plans.launch import TEMPLATES, Launch, PlannedFile, server_environment


@cache
def unit_file() -> PlannedFile:
    """Return the unit: one template, constant for a version of the toolkit."""
    return PlannedFile(paths.UNIT, (TEMPLATES / paths.UNIT_NAME).read_text(encoding="utf-8"))


def container_paths(launch: Launch) -> dict[str, bool]:
    """Return the paths of the node that the container sees, and whether it may write there."""
    return launch.read_and_written


def container_environment(launch: Launch) -> dict[str, str]:
    """Return the container's environment: ours, the GPUs', then the operator's."""
    access = launch.decision.access.environment if launch.decision.access else {}
    return {
        **server_environment(launch),
        **access,
        **launch.decision.environment,
        **launch.service.environment,
    }


def container_settings(launch: Launch, deployment: paths.Deployment, config: str) -> dict[str, str]:
    """Return what the unit needs of ``launch.env``: the image, and the words of ``docker run``."""
    service, decision = launch.service, launch.decision
    mounts = {deployment.directory: False, **container_paths(launch)}
    run = arguments.docker_arguments(service, decision, deployment, launch.limits, mounts)
    run += arguments.key_mount(config) if service.keys else ()
    return {
        "SGLANG_IMAGE": launch.image,
        "SGLANG_IMAGE_TAG": decision.image or "",
        "SGLANG_DOCKER_ARGUMENTS": quoting.words(run),
    }


def container_files(
    environment: dict[str, str], deployment: paths.Deployment, comment: str
) -> tuple[PlannedFile, ...]:
    """Return the files of a deployment that only this runtime has."""
    return (
        # Only root reads it: an operator may have put something private there.
        PlannedFile(
            deployment.file(paths.CONTAINER_ENV),
            quoting.docker_env_file(environment, comment),
            "0600",
        ),
    )
