"""Which GPUs the services that run now have: what is held there comes free when they restart."""

from __future__ import annotations

import json

from facts.records import Gpu, ServiceState, Survey, known
from plans import paths

RUNNING = ("active", "activating", "deactivating", "reloading")


def ours_on(survey: Survey, gpu: Gpu) -> bool:
    """Say whether a service of ours that runs has this GPU.

    Which process of a GPU is which service's cannot be told from a survey: on such a GPU every
    SGLang or Python process is taken for ours. A service whose plan cannot be read may have any.
    """
    if any(_has(one, gpu) for one in survey.services.values()):
        return True
    # A container of ours beside its unit, of which nothing is known. What compiles ahead is no
    # server that comes free with a restart.
    return any(
        name.startswith("sglang-")
        and not name.startswith(paths.AHEAD_BEGINS)
        and state == "running"
        and name.removeprefix("sglang-") not in survey.services
        for name, state in survey.docker.containers.items()
    )


def _has(state: ServiceState, gpu: Gpu) -> bool:
    if not known(state.active_state) or state.active_state not in RUNNING:
        return False
    try:
        given = json.loads(state.plan)["gpus"] if known(state.plan) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        given = None
    return not isinstance(given, list) or gpu.uuid in given or gpu.index in given
