"""The files of the door on a node: its settings, its programs and its units."""

from __future__ import annotations

import hashlib
import json

from facts.records import Survey, known
from plans import paths, quoting
from plans.launch import TEMPLATES, PlannedFile
from plans.wheel.environment import PlannedEnvironment

PROGRAMS = {"door.py": "door.py", "keeper.py": "door-keeper.py", "router.py": "door-router.py"}
"""The door's programs as they are called on a node, and their templates."""


def units_of_door() -> tuple[PlannedFile, ...]:
    """Return the door's units; the first one is of the door itself."""
    return tuple(PlannedFile(path, _template(path.rsplit("/", 1)[1])) for path in paths.DOOR_UNITS)


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def files_of_door(
    settings: dict[str, object], environment: PlannedEnvironment, turn: int
) -> tuple[PlannedFile, ...]:
    """Return the files of the door in a directory that their content names.

    ``turn`` 0 or 1: what stands there is never written over, so what was edited is written to
    the other one.
    """
    programs = {name: _template(template) for name, template in PROGRAMS.items()}
    units = {one.name: one.sha256 for one in units_of_door()}
    made_of = json.dumps([settings, programs, environment.key, units, turn], sort_keys=True)
    key = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    directory = f"{paths.DOORS}/{key}"
    own = {"key": key, "units": units, "environment": environment.directory}
    text = json.dumps(own | settings, indent=1) + "\n"
    variables = {"SGLANG_ENVIRONMENT": environment.directory, "PYTHONUNBUFFERED": "1"}
    return (
        PlannedFile(f"{directory}/door.json", text),
        PlannedFile(f"{directory}/door.env", quoting.environment_file(variables)),
        *(PlannedFile(f"{directory}/{name}", text) for name, text in programs.items()),
    )


def key_of(files: tuple[PlannedFile, ...]) -> str:
    return files[0].path.split("/")[-2]


def units_written(survey: Survey) -> dict[str, str]:
    """Return the checksums of the units as they were written with the settings that hold now."""
    there = survey.files.get(f"{paths.DOORS}/current/door.json")
    try:
        said = json.loads(there.text) if there and known(there.text) else {}
        # Earlier versions had one unit.
        units = said.get("units") or {paths.DOOR_UNIT_NAME: said.get("unit")}
        return {str(name): str(is_so) for name, is_so in units.items()}
    except (ValueError, AttributeError, RecursionError):
        return {}
