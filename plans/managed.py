"""Files that the toolkit manages: what is there of them, against what was written."""

from __future__ import annotations

import json

from facts.records import ManagedFile, ServiceState, Survey, known
from plans import paths
from plans.launch import LINK

INVENTORY = {
    paths.SERVER_YAML: "'arguments' of the service",
    paths.CONTAINER_ENV: "'environment' of the service",
    paths.SERVICE_ENV: "'environment' of the service",
}
"""Where the inventory says what stands in a file of a deployment."""


def has_sum(there: ManagedFile, sha256: str) -> bool:
    """Say whether a file is as this checksum says; of a link it says where that leads."""
    if sha256.startswith(LINK):
        return known(there.link) and f"{LINK}{there.link}" == sha256
    return there.sha256 == sha256


def is_read(there: ManagedFile) -> bool:
    """Say whether it is known what a file is: its checksum, or where it leads."""
    return known(there.sha256) or known(there.link)


def seen_sum(survey: Survey, path: str) -> str:
    """Return the checksum of what is at a path, ``absent`` where nothing is or it is not known."""
    there = survey.files.get(path)
    return there.sha256 if there is not None and known(there.sha256) else "absent"


def written_files(state: ServiceState) -> dict[str, str]:
    """Return the checksum of each file as the toolkit wrote it, from the plan of a deployment."""
    return _files_in(state.plan) if known(state.plan) else {}


def written_by(survey: Survey, state: ServiceState, number: int) -> dict[str, str]:
    """Return the same from the plan of any of its deployments; empty where that was not read."""
    file = survey.files.get(paths.Deployment(state.name, number).file(paths.PLAN_JSON))
    return _files_in(file.text) if file is not None and known(file.text) else {}


def _files_in(plan: str) -> dict[str, str]:
    try:
        files = json.loads(plan)["files"]
        return {str(path): str(sha256) for path, sha256 in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def where_to_keep(path: str, service: str) -> str:
    """Return where an operator writes what they edited into a managed file, so that it stays.

    systemd reads drop-ins beside a unit and beside our own drop-in; of a deployment every file is
    written from the inventory, and nothing beside it is read.
    """
    if not path.startswith(f"{paths.DEPLOYMENTS}/"):
        return f"keep the edit as a drop-in (systemctl edit {paths.unit_of(service)})"
    name = path.rsplit("/", 1)[1]
    return f"write what you want of it into the inventory ({INVENTORY.get(name, 'the service')})"
