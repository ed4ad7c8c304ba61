"""The programs that bring and check weights where the wheel runtime serves, as text."""

from __future__ import annotations

import json

from plans import paths
from plans.launch import TEMPLATES, Launch, render
from plans.onnode import base64_lines
from plans.plan import ServicePlan
from plans.scripts import check_job, fetch_job
from plans.wheel.launch import is_hidden

SHOWN = (
    f"User={paths.USER}",
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "ProtectSystem=strict",
    "ProtectHome=tmpfs",
    "PrivateTmp=yes",
    "PrivateNetwork=yes",
)
"""What a check of weights has of the unit that will read them."""


def fetch_weights(plan: ServicePlan) -> str:
    """Return the program that fetches a hub model's files, as root, and checks what came."""
    assert plan.launch is not None
    assert plan.weights is not None
    return _weights("fetch_weights.py", plan.launch, fetch_job(plan), plan.weights.home)


def check_weights(plan: ServicePlan) -> str:
    """Return the program that checks that the service's user can read a model whole."""
    assert plan.launch is not None
    return _weights("check_weights.py", plan.launch, check_job(plan), None)


def _weights(program: str, launch: Launch, job: dict[str, object], fetches_into: str | None) -> str:
    assert launch.environment is not None
    text = (TEMPLATES / program).read_text(encoding="utf-8")
    seen = [path for path, writable in launch.read_and_written.items() if not writable]
    return render(
        "weights-wheel.sh.j2",
        service=launch.service.name,
        unit=paths.weights_unit(launch.service.name),
        python=launch.environment.python_path,
        program=base64_lines(text),
        job=base64_lines(json.dumps(job)),
        fetches_into=fetches_into,
        endpoint=launch.wishes.hub.endpoint,
        token=paths.credential(paths.HUB_TOKEN),
        properties=[*SHOWN, *(f"BindReadOnlyPaths={path}" for path in seen if is_hidden(path))],
    )
