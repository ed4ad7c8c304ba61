"""Plans with a door: the survey of a node that may have one, and what it is once it stands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from facts.records import (
    Account,
    DoorServer,
    DoorState,
    Environment,
    ManagedFile,
    Survey,
)
from plans import paths
from plans.door import DoorPlan
from plans.make import make_plan
from plans.plan import NodePlan
from plans.secrets import NodeSecrets, Secret
from tests.unit.deployments import CAP, VERSION, applied, fresh, lock
from tests.unit.surveys import wishes

KEY = "k" * 32


def bare(**changes: Any) -> Survey:
    """Return the survey of a healthy node without a door, on which the user could be made."""
    return fresh(accounts={paths.USER: Account(paths.USER, exists=False)}, **changes)


def door_plan(
    node: Survey | None = None,
    door: dict[str, Any] | None = None,
    service: dict[str, Any] | None = None,
    keys: tuple[str, ...] = (),
    *,
    discard_edits: bool = False,
) -> NodePlan:
    """Return the plan of a node with one service and a door, whose keys are these."""
    given = {"port": 8000, "keys": [{"env": f"KEY{at}"} for at in range(len(keys))]}
    wanted = wishes(CAP | (service or {}), door=given | (door or {}))
    held = {paths.DOOR: {str(at): Secret(key) for at, key in enumerate(keys)}}
    secrets = NodeSecrets(keys=held)
    return make_plan(
        node or bare(), wanted, lock(), VERSION, secrets=secrets, discard_edits=discard_edits
    )


def of_door(made: NodePlan) -> DoorPlan:
    """Return the door's part of a plan."""
    assert made.door is not None, made.refusals
    return made.door


def stands(made: NodePlan, node: Survey | None = None) -> Survey:
    """Return what the survey of a node reads once a plan with a door was applied to it."""
    there = applied(made, node or bare())
    door = of_door(made)
    files = dict(there.files)
    for file in door.files:
        path = f"{paths.DOORS}/current/{file.name}"
        files[path] = ManagedFile(path, True, file.sha256, file.mode, "root:root", file.text)
    for unit in door.units:
        files[unit.path] = ManagedFile(unit.path, True, unit.sha256, unit.mode, "root:root")
    sums = files.get(paths.DOOR_KEYS, ManagedFile(paths.DOOR_KEYS, exists=False)).sha256
    if door.keys is not None:
        sums = door.keys.sha256
        files[paths.DOOR_KEYS] = ManagedFile(paths.DOOR_KEYS, True, sums, "0600", "root:root")
    assert door.environment is not None
    key = door.environment.key
    whole = Environment(
        door.environment.directory, f'{{"key": "{key}"}}', parts=(), missing=(), changed=()
    )
    account = Account(paths.USER, True, 990, 990, paths.HOME, "/usr/sbin/nologin")
    return replace(
        there,
        files=files,
        environments={**there.environments, key: whole},
        accounts={paths.USER: account},
        door=DoorState(
            load_state="loaded",
            active_state="active",
            unit_file_state="enabled",
            main_pid="99",
            need_daemon_reload="no",
            current=door.key,
            settings=door.key,
            keys=sums,
            pid="99",
            servers={"chat": DoorServer("in", "http://127.0.0.1:30000")},
        ),
    )
