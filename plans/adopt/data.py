"""What ``plans/data/adopt.yaml`` says: options that are read, and why others are not carried."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from plans.adopt.records import Note


class Data(BaseModel):
    """The file, checked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    docker_switches: frozenset[str]
    docker_short: dict[str, str]
    docker_ignored: frozenset[str]
    container: dict[str, str]
    otherwise: str
    mount_of_code: str
    mount_otherwise: str
    code_in_image: tuple[str, ...]
    mounts_ignored: frozenset[str]
    mounts_of_caches: tuple[str, ...]
    mount_of_caches: str
    server_variables: tuple[str, ...]
    variables_of_images: frozenset[str]
    variables: dict[str, str]
    unit: dict[str, str]
    unit_limits: frozenset[str]
    unit_limit: str


@cache
def adopt_data() -> Data:
    """Return the data."""
    file = Path(__file__).parents[1] / "data" / "adopt.yaml"
    read: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    return Data.model_validate(read)


def lost_option(option: str, shown: str) -> Note:
    """Return the note for an option of a container that has no place in an entry."""
    data = adopt_data()
    return Note(shown, data.container.get(option, data.otherwise))
