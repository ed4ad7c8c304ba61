"""The deployment directory: everything a service is started from, as text."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from plans import arguments, paths, quoting
from plans.build import Build
from plans.checks import split_arguments
from plans.deadlines import RESTART_PAUSE, START_BURST, Deadlines
from plans.decision import Decision
from plans.journal import logging_config
from plans.network import scheduler_port
from plans.phases import gate_phases
from plans.probe import probes
from plans.secrets import NONE, NodeSecrets
from plans.server_yaml import command_line, server_yaml
from plans.sources import secret_data
from plans.wishes import Service, Wishes
from releases.table import cache_environment, get_release, ready_path

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"

PROBE_FILES = ("probe.json", "probe-plain.json")
"""Bodies of the requests that prove a generation: the second where the first is refused."""

PRIVATE = {"environment", "api_key", "admin_api_key"}
"""Keys of a service that its ``plan.json``, which everyone reads, leaves out."""

DROP_IN_FILE = paths.DROP_IN_NAME
UNIT_FILE = paths.UNIT_NAME


@dataclass(frozen=True)
class PlannedFile:
    """A file as it should be on the node."""

    path: str
    text: str = field(repr=False)
    mode: str = "0644"

    @property
    def sha256(self) -> str:
        """The checksum of its text, as sha256sum prints it."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class Launch:
    """What one service is started with, before it has the number of a deployment."""

    service: Service
    wishes: Wishes
    decision: Decision
    image: str  # by digest, as docker run gets it
    limits: Deadlines
    output_cap: int
    build: Build
    server: Mapping[str, Any]  # arguments for server.yaml
    version: str  # of the toolkit
    other_models: bool = False  # its arguments name models in the hub's cache
    read_paths: tuple[str, ...] = ()  # of the node, that its arguments name
    model_bytes: int | None = None  # of the weights that a start reads; None: not known
    journal_filter: str | None = None  # of lines that hold a key; None: none, or no such systemd
    secrets: NodeSecrets = field(default=NONE, compare=False)

    @property
    def cache_directory(self) -> str:
        """Where this build's compiled kernels are."""
        return f"{self.wishes.paths.caches}/{self.build.key}"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # nothing here is HTML; each template quotes for what reads it
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    return environment


def render(template: str, **data: object) -> str:
    """Return the text of one of our templates."""
    return _environment().get_template(template).render(**data)


def unit_file() -> PlannedFile:
    """Return the unit: one template, constant for a version of the toolkit."""
    return PlannedFile(paths.UNIT, (TEMPLATES / paths.UNIT_NAME).read_text(encoding="utf-8"))


def drop_in_file(launch: Launch) -> PlannedFile:
    """Return the drop-in: only what systemd itself must know of this service."""
    limits = launch.limits
    text = render(
        "drop-in.conf.j2",
        service=launch.service.name,
        unit=paths.unit_of(launch.service.name),
        # Not the build's own directory: with a new model nothing may move in /etc/systemd.
        mounts=sorted(
            {paths.DEPLOYMENTS, launch.wishes.paths.caches, *container_paths(launch)}
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
    return PlannedFile(paths.drop_in(launch.service.name), text)


def container_paths(launch: Launch) -> dict[str, bool]:
    """Return the paths of the node that the container sees, and whether it may write there."""
    seen = {launch.cache_directory: True}
    if launch.service.is_local:
        seen[launch.service.model] = False
    if not launch.service.is_local or launch.other_models:
        seen[launch.wishes.paths.weights] = False
    for path in launch.read_paths:
        seen.setdefault(path, False)
    return seen


def container_environment(launch: Launch) -> dict[str, str]:
    """Return the container's environment: ours, the GPUs', then the operator's."""
    cache_dir = launch.cache_directory
    release = get_release(launch.decision.release or "")
    ours = {
        # All of them, also those that SGLANG_CACHE_DIR redirects: releases differ in that.
        **cache_environment(release, cache_dir, launch.wishes.paths.weights),
        # /health must not send a generation: one that times out leaves the server
        # unready, and its next stop then loses requests.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
        # The stop deadline counts on it: no answer is longer.
        "SGLANG_MAX_NEW_TOKENS_LIMIT": str(launch.output_cap),
        # The weights are there before it starts: it asks the hub nothing, and has no token.
        "HF_HUB_OFFLINE": "1",
    }
    access = launch.decision.access.environment if launch.decision.access else {}
    return {**ours, **access, **launch.decision.environment, **launch.service.environment}


def deployment_files(launch: Launch, number: int) -> tuple[PlannedFile, ...]:
    """Return the files of deployment ``number`` that decide how the service runs.

    Their texts depend on nothing else: equal texts are an equal deployment.
    """
    deployment = paths.Deployment(launch.service.name, number)
    comment = (
        f"{launch.service.name}, deployment {number}: written by pyinfra-sglang.\n"
        "Change the inventory and apply again; a change made here is refused and shown."
    )
    service, decision = launch.service, launch.decision
    release = get_release(decision.release or "")
    mounts = {deployment.directory: False, **container_paths(launch)}
    # The configuration that holds the keys is no part of the deployment: others read that.
    config = deployment.file(paths.SERVER_YAML)
    if service.keys:
        config = paths.key_file(service.name, number)
    run = arguments.docker_arguments(service, decision, deployment, launch.limits, mounts)
    run += arguments.key_mount(config) if service.keys else ()
    tries = probes(service)
    in_file, on_line = split_arguments(launch.server, release.version)
    launch_env = {
        "SGLANG_SERVICE": service.name,
        "SGLANG_RELEASE": decision.release or "",
        "SGLANG_RUNTIME": "image",
        "SGLANG_DEPLOYMENT": str(number),
        "SGLANG_BUILD": launch.build.key,
        "SGLANG_KERNELS": launch.cache_directory,
        # For a remove, which knows no inventory.
        "SGLANG_WEIGHTS": "" if service.is_local else launch.wishes.paths.weights,
        "SGLANG_IMAGE": launch.image,
        "SGLANG_IMAGE_TAG": decision.image or "",
        "SGLANG_MODEL": service.model,
        "SGLANG_MODEL_BYTES": str(launch.model_bytes or ""),
        "SGLANG_CONFIG": config,
        "SGLANG_ADDRESS": service.address,
        "SGLANG_PORT": str(service.port),
        **(
            {"SGLANG_SCHEDULER_PORT": str(scheduler_port(service))}
            if service.network == "host"
            else {}
        ),
        "SGLANG_PROBE_HOST": arguments.probe_host(service),
        "SGLANG_READY_PATH": ready_path(release),
        "SGLANG_MODEL_ID_JSON": json.dumps(service.public_name, ensure_ascii=False),
        "SGLANG_PROBE_PATH": tries[0].path,
        "SGLANG_PROBE_PLAIN_PATH": tries[1].path if len(tries) > 1 else "",
        "SGLANG_PROBE_EXPECT": tries[0].expect,
        "SGLANG_SILENCE_LIMIT": str(launch.limits.silence_limit),
        "SGLANG_DOCKER_ARGUMENTS": quoting.words(run),
        # What SGLang's --config cannot carry; most services have none.
        "SGLANG_SERVER_ARGUMENTS": quoting.words(command_line(on_line)),
    }
    gate = render(
        "ready-gate.sh.j2",
        service=service.name,
        release=decision.release,
        unit=paths.unit_of(service.name),
        container=paths.container_of(service.name),
        http=(TEMPLATES / "http.sh").read_text(encoding="utf-8"),
        phases=gate_phases(release.version),
    )
    environment = container_environment(launch)
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
        # Only root reads it: an operator may have put something private there.
        PlannedFile(
            deployment.file(paths.CONTAINER_ENV),
            quoting.docker_env_file(environment, comment),
            "0600",
        ),
        PlannedFile(deployment.file(paths.GATE), gate, "0755"),
        *logging,
        *(
            PlannedFile(deployment.file(name), one.body + "\n")
            for name, one in zip(PROBE_FILES, tries, strict=False)
        ),
        # Kept with the deployment, so that going back brings its limits back too.
        PlannedFile(deployment.file(DROP_IN_FILE), drop_in_file(launch).text),
        PlannedFile(deployment.file(UNIT_FILE), unit_file().text),
    )


def plan_file(launch: Launch, number: int, files: tuple[PlannedFile, ...]) -> PlannedFile:
    """Return ``plan.json``: why this deployment is as it is, and the checksum of each file."""
    deployment = paths.Deployment(launch.service.name, number)
    document = {
        "schema": 1,
        "toolkit": launch.version,
        "service": launch.service.model_dump(mode="json", exclude=PRIVATE),
        "release": launch.decision.release,
        "image": {"tag": launch.decision.image, "run": launch.image},
        "gpus": [
            gpu.uuid if isinstance(gpu.uuid, str) else gpu.index for gpu in launch.decision.gpus
        ],
        "reasons": list(launch.decision.reasons),
        "build": {"key": launch.build.key, **vars(launch.build)},
        "stop_deadline": launch.limits.arithmetic,
        "files": {file.path: file.sha256 for file in files}
        | {drop_in_file(launch).path: drop_in_file(launch).sha256}
        | {unit_file().path: unit_file().sha256},
    }
    text = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    return PlannedFile(deployment.file(paths.PLAN_JSON), text)
