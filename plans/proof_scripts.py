"""The programs that prove a new deployment, watch it, keep what a failed one left, run a hook."""

from __future__ import annotations

import math
from collections.abc import Mapping

from plans import arguments, paths
from plans.deployment import PROBE_FILES, TEMPLATES, render
from plans.hooks import Hook
from plans.onnode import base64_lines
from plans.probe import ready_path_of
from plans.proving import AT_ONCE, CANCEL_AFTER_S, ordinary, tries
from plans.soaking import UNREADY
from plans.wishes import Service

LIMIT_S = 300
"""Seconds that one answer may take, as at an ordinary verify."""

FAILED_LOG = "failed.log"
BEFORE_LOG = "before.log"
"""Logs kept in the directory of a deployment that failed: its own, and of the one before it."""


def verify_hard(service: Service, release: str, number: int) -> str:
    """Return the program that asks for all of ``plans.proving``; that judges what it prints."""
    chat, plain = ordinary(service)
    bodies = [("ordinary.chat", chat.body), ("ordinary.plain", plain.body)]
    for one in tries(service):
        bodies += [(f"{one.name}.chat", one.chat.body), (f"{one.name}.plain", one.plain.body)]
    return render(
        "verify-hard.sh.j2",
        **_service(service, release, number),
        bodies=[(name, base64_lines(body)) for name, body in bodies],
        chat_path=chat.path,
        plain_path=plain.path if plain is not chat else None,
        at_once=AT_ONCE,
        tries=tries(service),
        limit=LIMIT_S,
        cancel_after=CANCEL_AFTER_S,
    )


def soak(service: Service, release: str, number: int, seconds: float) -> str:
    """Return the program that watches a service for so many seconds; ``plans.soaking`` judges."""
    chat, plain = ordinary(service)
    return render(
        "soak.sh.j2",
        **_service(service, release, number),
        seconds=math.ceil(seconds),
        unready=UNREADY,
        chat_path=chat.path,
        chat_file=PROBE_FILES[0],
        plain_path=plain.path,
        plain_file=PROBE_FILES[1] if plain is not chat else None,
    )


def _service(service: Service, release: str, number: int) -> dict[str, object]:
    return {
        "unit": paths.unit_of(service.name),
        "directory": paths.Deployment(service.name, number).directory,
        "base": f"http://{arguments.probe_host(service)}:{service.port}",
        "ready_path": ready_path_of(service, release),
        "http": (TEMPLATES / "http.sh").read_text(encoding="utf-8"),
        "generation": (TEMPLATES / "generation.sh").read_text(encoding="utf-8"),
    }


def keep_logs(service: str, number: int, invocation_before: str, record: str | None) -> str:
    """Return the program that keeps both logs of a change that failed, before it is taken back.

    ``invocation_before``: systemd's name of the run that served before, empty where none did.
    ``record``: text of ``record.json`` that takes the place of the one that is there, if any.
    """
    return render(
        "keep-logs.sh.j2",
        unit=paths.unit_of(service),
        deployments=paths.deployments_of(service),
        directory=paths.Deployment(service, number).directory,
        invocation_before=invocation_before,
        failed_log=FAILED_LOG,
        before_log=BEFORE_LOG,
        record=base64_lines(record) if record is not None else None,
        record_name=paths.RECORD_JSON,
    )


def hook(one: Hook, environment: Mapping[str, str]) -> str:
    """Return the program that runs a hook on the node, with these variables."""
    return render(
        "hook.sh.j2",
        environment=list(environment.items()),
        command=base64_lines(one.run + "\n"),
        limit=math.ceil(one.limit),
    )
