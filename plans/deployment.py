"""The deployment directory: everything a service is started from, as text."""

from __future__ import annotations

import json

from plans import paths, quoting
from plans.checks import split_arguments
from plans.container import (
    container_environment,
    container_files,
    container_paths,
    container_settings,
    unit_file,
)
from plans.deadlines import RESTART_PAUSE, START_BURST
from plans.journal import logging_config
from plans.launch import (
    TEMPLATES,
    Launch,
    PlannedFile,
    gate_file,
    launch_settings,
    render,
    stop_gate_file,
)
from plans.probe import probes
from plans.server_yaml import command_line, server_yaml
from plans.sources import secret_data
from plans.wheel.launch import (
    devices_unit_file,
    drop_in_part,
    wheel_environment,
    wheel_files,
    wheel_settings,
    wheel_unit_file,
)
from releases.table import get_release

__all__ = [
    "TEMPLATES",
    "Launch",
    "PlannedFile",
    "container_environment",
    "container_paths",
    "deployment_files",
    "drop_in_file",
    "plan_file",
    "render",
    "unit_file",
    "unit_files",
]

PROBE_FILES = ("probe.json", "probe-plain.json")
"""Bodies of the requests that prove a generation: the second where the first is refused."""

PRIVATE = {"environment", "api_key", "admin_api_key", "wheel_lock"}
"""Keys of a service that its ``plan.json``, which everyone reads, leaves out."""


def unit_files(launch: Launch) -> tuple[PlannedFile, ...]:
    """Return the units of a launch's runtime, the service's own first."""
    if launch.environment is None:
        return (unit_file(),)
    return (wheel_unit_file(launch.service.name), devices_unit_file())


def drop_in_file(launch: Launch) -> PlannedFile:
    """Return the drop-in: only what systemd itself must know of this service."""
    limits = launch.limits
    text = render(
        "drop-in.conf.j2",
        service=launch.service.name,
        unit=paths.unit_of(launch.service.name),
        # Not the build's own directory: with a new model nothing may move in /etc/systemd.
        mounts=sorted(
            {
                paths.DEPLOYMENTS,
                launch.wishes.paths.caches,
                *launch.read_and_written,
                *([paths.ENVIRONMENTS] if launch.environment else []),
            }
            - {launch.cache_directory, *launch.read_paths}
        ),
        burst=START_BURST,
        pause=RESTART_PAUSE,
        start_limit=limits.start_limit,
        start_interval=limits.start_interval,
        silence_limit=limits.silence_limit,
        stop_parts=limits.stop_parts,
        stop_timeout=limits.stop,
        journal_filter=launch.journal_filter,
    )
    part = drop_in_part(launch) if launch.environment else ""
    return PlannedFile(paths.drop_in(launch.service.name), text + part)


def deployment_files(launch: Launch, number: int) -> tuple[PlannedFile, ...]:
    """Return the files of deployment ``number`` that decide how the service runs.

    Their texts depend on nothing else: equal texts are an equal deployment.
    """
    deployment = paths.Deployment(launch.service.name, number)
    comment = (
        f"{launch.service.name}, deployment {number}: written by pyinfra-sglang.\n"
        "Change the inventory and apply again; a change made here is refused and shown."
    )
    service = launch.service
    # The configuration that holds the keys is no part of the deployment: others read that.
    config = deployment.file(paths.SERVER_YAML)
    if service.keys:
        config = paths.key_file(service.name, number)
    tries = probes(service)
    in_file, on_line = split_arguments(
        launch.server, get_release(launch.decision.release or "").version
    )
    # What SGLang's --config cannot carry; most services have none.
    words = quoting.words(command_line(on_line))
    wheel = launch.environment is not None
    own = wheel_settings(launch) if wheel else container_settings(launch, deployment, config)
    launch_env = launch_settings(
        launch, number, config, tries, {**own, "SGLANG_SERVER_ARGUMENTS": words}
    )
    environment = wheel_environment(launch) if wheel else container_environment(launch)
    quiet = logging_config(service, launch.journal_filter is not None)
    logging: tuple[PlannedFile, ...] = ()
    if quiet is not None:
        logging = (PlannedFile(deployment.file(paths.LOGGING_JSON), quiet),)
        environment |= {secret_data()["journal"]["config_variable"]: logging[0].path}
    return (
        PlannedFile(deployment.file(paths.SERVER_YAML), server_yaml(in_file, comment)),
        PlannedFile(
            deployment.file(paths.LAUNCH_ENV), quoting.environment_file(launch_env, comment)
        ),
        *(
            wheel_files(launch, environment, deployment, config, words, comment)
            if wheel
            else container_files(environment, deployment, comment)
        ),
        gate_file(launch, deployment),
        stop_gate_file(launch, deployment),
        *logging,
        *(
            PlannedFile(deployment.file(name), one.body + "\n")
            for name, one in zip(PROBE_FILES, tries, strict=False)
        ),
        # Kept with the deployment, so that going back brings its limits back too.
        *(
            PlannedFile(deployment.file(file.name), file.text)
            for file in (drop_in_file(launch), *unit_files(launch))
        ),
    )


def plan_file(launch: Launch, number: int, files: tuple[PlannedFile, ...]) -> PlannedFile:
    """Return ``plan.json``: why this deployment is as it is, and the checksum of each file."""
    deployment = paths.Deployment(launch.service.name, number)
    environment = launch.environment
    document = {
        "schema": 1,
        "toolkit": launch.version,
        "service": launch.service.model_dump(mode="json", exclude=PRIVATE),
        "release": launch.decision.release,
        "runtime": launch.runtime,
        "image": None if environment else {"tag": launch.decision.image, "run": launch.image},
        **(
            {
                "environment": {
                    "key": environment.key,
                    "python": environment.python,
                    "cuda_home": environment.cuda_home.path if environment.cuda_home else None,
                    "departures": [what for what, _ in environment.departures],
                }
            }
            if environment
            else {}
        ),
        "gpus": [
            gpu.uuid if isinstance(gpu.uuid, str) else gpu.index for gpu in launch.decision.gpus
        ],
        "reasons": list(launch.decision.reasons),
        "build": {"key": launch.build.key, **vars(launch.build)},
        "stop_deadline": launch.limits.arithmetic,
        "files": {
            file.path: file.sha256 for file in (*files, drop_in_file(launch), *unit_files(launch))
        },
    }
    text = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    return PlannedFile(deployment.file(paths.PLAN_JSON), text)
