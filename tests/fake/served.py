"""The survey of a node that serves: a recorded one, and what an apply of a plan leaves there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from facts.parsing import parse_survey
from locks.records import Lock
from plans import paths
from plans.deployment import drop_in_file, unit_files
from plans.make import make_plan
from plans.plan import ServicePlan
from plans.version import VERSION
from plans.wishes import read_wishes
from tests.fake.command import CHAT, recording
from tests.fake.test_exit_codes import whole_lock

RECORD = '{"result": "ready, and it generates"}\n'


def served(
    name: str,
    data: Any = None,
    *,
    lock: Lock | None = None,
    state: str = "active",
    ready: int = 200,
) -> list[str]:
    """Return the lines of a recorded survey once a plan for one service was applied to that node.

    ``name`` is a recording of the demonstration; ``state`` is systemd's of its services, and
    ``ready`` the status that their ready endpoint answers with.
    """
    lines = recording(name)
    wishes = read_wishes(data or {"services": [CHAT]}, name)
    plan = make_plan(parse_survey(lines, name), wishes, lock or whole_lock(), VERSION)
    assert not plan.refusals, plan.refusals
    (service,) = plan.services
    more = _service(service, state, ready)
    end = lines.index("@ parts rc=0")
    images = lines.index("@ docker.images rc=0")
    return [
        *lines[: images + 1],
        f" {_image(service)}",
        *lines[images + 1 : end],
        *more,
        *lines[end:],
    ]


def _image(service: ServicePlan) -> str:
    assert service.launch is not None
    repository, _, digest = service.launch.image.partition("@")
    return json.dumps({"Repository": repository, "Digest": digest, "ID": f"sha256:{'3' * 64}"})


def _section(name: str, text: Sequence[str]) -> list[str]:
    return [f"@ {name} rc=0", *(f" {line}" for line in text)]


def _service(service: ServicePlan, state: str, ready: int) -> list[str]:
    launch = service.launch
    assert launch is not None
    name, number = service.name, service.number
    units, drop_in = unit_files(launch), drop_in_file(launch)
    record = f"{paths.Deployment(name, number).directory}/{paths.RECORD_JSON}"
    unit = paths.unit_of(name)
    runs = state == "active"
    show = {
        "Id": unit,
        "LoadState": "loaded",
        "ActiveState": state,
        "SubState": "running" if runs else "dead",
        "Result": "success" if runs else "exit-code",
        "UnitFileState": "enabled",
        "MainPID": "1023" if runs else "0",
        "NRestarts": "0",
        "NeedDaemonReload": "no",
        "InvocationID": "ab" * 16,
        "FragmentPath": units[0].path,
        "DropInPaths": drop_in.path,
    }
    lines = _section("services.show", [*(f"{key}={value}" for key, value in show.items()), ""])
    lines += _section("deployment", [name, f"current {number}", f"number {number}", ""])
    for file in (*service.files, *units, drop_in):
        kind = f"regular file|{file.mode.lstrip('0')}|root:root|{len(file.text)}"
        lines += _section("file", [file.path, kind, file.sha256, ""])
        if file.mode == "0644":
            lines += _section("text", [file.path, *file.text.split("\n")])
    told = hashlib.sha256(RECORD.encode()).hexdigest()
    lines += _section("file", [record, "regular file|644|root:root|1", told, ""])
    lines += _section("text", [record, *RECORD.split("\n")])
    if runs:
        models = json.dumps({"data": [{"id": launch.service.public_name}]})
        lines += _section("answer.ready", [name, str(ready)])
        lines += _section("answer.models", [name, "200", models])
    return lines
