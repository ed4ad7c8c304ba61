"""What the record of a deployment says: its verify, its upgrade, how long its start took."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from facts.records import Unknown

if TYPE_CHECKING:  # a plan is made by what reads records
    from plans.plan import ServicePlan

KERNELS = "kernels"
"""Key of ``record.json`` that says what the first start of its deployment found in its cache."""


def read_record(text: str | Unknown) -> Mapping[str, Any]:
    """Return the text of a ``record.json`` as a mapping; an empty one where it is none."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def first_answer_seconds(text: str | Unknown) -> int | None:
    """Return the seconds from a deployment's start to its first answer, by the text of its record;
    None where that does not tell."""
    seconds = read_record(text).get("first_answer_seconds")
    return seconds if isinstance(seconds, int) and not isinstance(seconds, bool) else None


def record_base(one: ServicePlan) -> dict[str, Any]:
    """Return what a deployment's record says beside what its verify saw."""
    return {
        "deployment": one.number,
        "release": one.decision.release,
        "image": one.launch.image or None if one.launch else None,
        "environment": one.environment.key if one.environment else None,
        "build": one.launch.build.key if one.launch else None,
        **({KERNELS: one.kernels} if one.kernels else {}),
    }
