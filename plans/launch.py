"""A launch: what one service is started with, and the texts that every runtime makes of it."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jinja2

from plans import arguments, paths
from plans.build import Build
from plans.deadlines import TRICKLE, Deadlines
from plans.decision import Decision
from plans.innerports import inner_ports
from plans.pair import environment_of_half
from plans.phases import gate_phases
from plans.probe import Probe, ready_path_of
from plans.secrets import NONE, NodeSecrets
from plans.stopgate import shuts, stop_gate_data
from plans.wishes import Service, Wishes
from releases.table import cache_environment, get_release

if TYPE_CHECKING:  # planning an environment takes findings, and those a plan of launches
    from plans.wheel.environment import PlannedEnvironment

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"

LINK = "-> "
"""Begins what stands for the checksum of a symbolic link: then comes where it leads."""


@dataclass(frozen=True)
class PlannedFile:
    """A file as it should be on the node; with ``link`` a symbolic link, which has no text."""

    path: str
    text: str = field(repr=False)
    mode: str = "0644"
    link: str | None = None

    @property
    def name(self) -> str:
        """Its name, without the directory."""
        return self.path.rsplit("/", 1)[1]

    @property
    def sha256(self) -> str:
        """The checksum of its text, as sha256sum prints it; of a link where it leads."""
        if self.link is not None:
            return f"{LINK}{self.link}"
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class Launch:
    """What one service is started with, before it has the number of a deployment."""

    service: Service
    wishes: Wishes
    decision: Decision
    image: str  # by digest, as docker run gets it; empty for a runtime without one
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
    environment: PlannedEnvironment | None = None  # None: the image runtime

    @property
    def runtime(self) -> Literal["image", "wheel"]:
        """The runtime that it is for."""
        return "image" if self.environment is None else "wheel"

    @property
    def cache_directory(self) -> str:
        """Where this build's compiled kernels are."""
        return f"{self.wishes.paths.caches}/{self.build.key}"

    @property
    def read_and_written(self) -> dict[str, bool]:
        """The paths of the node that the server sees, and whether it may write there."""
        seen = {self.cache_directory: True}
        if self.service.is_local:
            seen[self.service.model] = False
        if not self.service.is_local or self.other_models:
            seen[self.wishes.paths.weights] = False
        for path in self.read_paths:
            seen.setdefault(path, False)
        return seen


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # nothing here is HTML; each template quotes for what reads it
        auto_reload=False,  # no template changes while a run lasts
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    return environment


def render(template: str, **data: object) -> str:
    """Return the text of one of our templates."""
    return _environment().get_template(template).render(**data)


def server_environment(launch: Launch) -> dict[str, str]:
    """Return what the toolkit itself puts into a server's environment, whatever the runtime."""
    release = get_release(launch.decision.release or "")
    return {
        # All of them, also those that SGLANG_CACHE_DIR redirects: releases differ in that.
        **cache_environment(release, launch.cache_directory, launch.wishes.paths.weights),
        # /health must not send a generation: one that times out leaves the server
        # unready, and its next stop then loses requests.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
        # The stop deadline counts on it: no answer is longer.
        "SGLANG_MAX_NEW_TOKENS_LIMIT": str(launch.output_cap),
        # The weights are there before it starts: it asks the hub nothing, and has no token.
        "HF_HUB_OFFLINE": "1",
        **environment_of_half(launch.service),
    }


def launch_settings(
    launch: Launch, number: int, config: str, tries: tuple[Probe, ...], runtime: Mapping[str, str]
) -> dict[str, str]:
    """Return what stands in ``launch.env``: how a service was started and how it is asked.

    ``config`` is the file with its arguments; ``runtime`` what that runtime's own unit needs.
    """
    service, decision = launch.service, launch.decision
    return {
        "SGLANG_SERVICE": service.name,
        "SGLANG_RELEASE": decision.release or "",
        "SGLANG_RUNTIME": launch.runtime,
        "SGLANG_DEPLOYMENT": str(number),
        "SGLANG_BUILD": launch.build.key,
        "SGLANG_KERNELS": launch.cache_directory,
        # For a remove, which knows no inventory.
        "SGLANG_WEIGHTS": "" if service.is_local else launch.wishes.paths.weights,
        **{name: value for name, value in runtime.items() if name in FIRST},
        "SGLANG_MODEL": service.model,
        "SGLANG_MODEL_BYTES": str(launch.model_bytes or ""),
        "SGLANG_CONFIG": config,
        "SGLANG_ADDRESS": service.address,
        "SGLANG_PORT": str(service.port),
        **(
            {one.variable: str(one.port) for one in inner_ports(service)}
            if service.network == "host"
            else {}
        ),
        "SGLANG_PROBE_HOST": arguments.probe_host(service),
        "SGLANG_READY_PATH": ready_path_of(service, decision.release or ""),
        "SGLANG_RANK": "" if service.rank is None else str(service.rank),
        "SGLANG_SHUTS": shuts(launch.server),
        "SGLANG_MODEL_ID_JSON": json.dumps(service.public_name, ensure_ascii=False),
        "SGLANG_PROBE_PATH": tries[0].path,
        "SGLANG_PROBE_PLAIN_PATH": tries[1].path if len(tries) > 1 else "",
        "SGLANG_PROBE_EXPECT": tries[0].expect,
        "SGLANG_SILENCE_LIMIT": str(launch.limits.silence_limit),
        **{name: value for name, value in runtime.items() if name not in FIRST},
    }


FIRST = ("SGLANG_IMAGE", "SGLANG_IMAGE_TAG", "SGLANG_ENVIRONMENT")
"""What a service runs from stands before how it is asked."""


def gate_file(launch: Launch, deployment: paths.Deployment) -> PlannedFile:
    """Return the ready gate of a deployment."""
    service, release = launch.service, get_release(launch.decision.release or "")
    text = _gate(
        service=service.name,
        release=launch.decision.release,
        runtime=launch.runtime,
        unit=paths.unit_of(service.name),
        container=paths.container_of(service.name),
        run=paths.RUN,
        phases=gate_phases(release.version),
        trickle=TRICKLE,
    )
    return PlannedFile(deployment.file(paths.GATE), text, "0755")


@lru_cache(maxsize=256)
def _gate(**data: object) -> str:
    """Return the text of a gate: nodes whose services have one name and release share it."""
    return render("ready-gate.sh.j2", http=_text("http.sh"), door=_text("door.sh"), **data)


@cache
def _text(template: str) -> str:
    return (TEMPLATES / template).read_text(encoding="utf-8")


@lru_cache(maxsize=256)
def stop_gate(service: str) -> str:
    """Return the program that systemd runs around each stop of a service."""
    return render("stop-gate.sh.j2", http=_text("http.sh"), **stop_gate_data(service))


def stop_gate_file(launch: Launch, deployment: paths.Deployment) -> PlannedFile:
    """Return the stop gate of a deployment."""
    return PlannedFile(deployment.file(paths.STOP_GATE), stop_gate(launch.service.name), "0755")
