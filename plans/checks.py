"""Checks the operator's arguments and environment against the release they are for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plans.refusals import Caution, Refusal
from plans.renames import rewritten
from plans.wishes import Service
from releases.schema import Runtime
from releases.table import (
    defects_touched,
    environment_problems,
    flag_problems,
    get_release,
    normalise_flag,
)

OURS = {
    "HF_HOME": "paths.weights",
    "HOME": None,
    "SGLANG_MAX_NEW_TOKENS_LIMIT": "output_cap",
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": None,
    "NVIDIA_VISIBLE_DEVICES": "gpus",
    "CUDA_VISIBLE_DEVICES": "gpus",
    "HF_HUB_OFFLINE": None,
}
"""Variables that the toolkit sets, and the key to write instead where there is one.

The stop deadline, the caches and the choice of GPUs rest on them.
"""


def argument_checks(
    service: Service, release: str, runtime: Runtime | None = "image"
) -> tuple[dict[str, Any], list[Refusal], list[Caution]]:
    """Return the arguments by flag name with dashes, what refuses them, what to know of them.

    Deprecated flags stand there under the names that the release says to write instead.
    ``runtime``: of which alone some defects are; None leaves those out.
    """
    entry = get_release(release)
    refusals: list[Refusal] = []
    cautions: list[Caution] = []
    codes = {
        "unknown": "FLAG_UNKNOWN",
        "reserved": "FLAG_RESERVED",
        "deprecated": "FLAG_DEPRECATED",
    }
    given, renamed, twice = rewritten(entry, service.arguments)
    for one in twice:
        refusals.append(
            Refusal(
                "FLAG_DEPRECATED",
                one,
                "one name for one setting",
                f"leave the deprecated one out of arguments of {service.name}",
                service.name,
            )
        )
    cautions += [Caution("FLAG_DEPRECATED", one.text, service.name) for one in renamed]
    for problem in flag_problems(entry, _spelt(service, given)):
        code = codes.get(problem.kind, "ARGUMENT_REFUSED")
        if problem.severity == "refuse":
            refusals.append(
                Refusal(
                    code,
                    problem.message,
                    f"arguments that SGLang {release} takes",
                    problem.suggestion
                    or f"leave {problem.flag} out of arguments of {service.name}",
                    service.name,
                )
            )
        else:
            told = f": {problem.suggestion}" if problem.suggestion else ""
            cautions.append(Caution(code, f"{problem.message}{told}", service.name))
    share = given.get("mem-fraction-static")
    if isinstance(share, int | float) and not 0 < share < 1:
        refusals.append(
            Refusal(
                "ARGUMENT_REFUSED",
                f"mem-fraction-static is {share}",
                "the part of a GPU's memory for weights and cache, between 0 and 1",
                f"write such as 0.85 in arguments of {service.name}",
                service.name,
            )
        )
    for defect in defects_touched(entry, given, service.environment, runtime):
        if defect.severity == "refuse":
            refusals.append(
                Refusal(
                    "KNOWN_DEFECT",
                    f"SGLang {release}: {defect.what}",
                    "arguments that do not meet it",
                    defect.workaround,
                    service.name,
                )
            )
        elif defect.severity == "warn":
            text = f"SGLang {release}: {defect.what}; {defect.workaround}"
            cautions.append(Caution("KNOWN_DEFECT", text, service.name))
    return given, refusals, cautions


def _spelt(service: Service, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as the operator spelt them, so that one flag spelt twice is seen."""
    own = {
        name: value for name, value in service.arguments.items() if normalise_flag(name) in given
    }
    new = {name: value for name, value in given.items() if name not in map(normalise_flag, own)}
    return own | new


def environment_checks(service: Service, release: str) -> tuple[list[Refusal], list[Caution]]:
    """Return what refuses the operator's environment, and what to know of it."""
    entry = get_release(release)
    refusals = [
        _taken(name, OURS.get(name), service)
        for name in service.environment
        if name in OURS or name in {cache.variable for cache in entry.caches}
    ]
    cautions: list[Caution] = []
    for problem in environment_problems(entry, service.environment):
        if problem.severity == "refuse":
            refusals.append(
                Refusal(
                    "ENVIRONMENT_REFUSED",
                    problem.message,
                    "an environment that does no harm",
                    problem.suggestion,
                    service.name,
                )
            )
        else:
            text = f"{problem.message}; {problem.suggestion}"
            cautions.append(Caution("ENVIRONMENT_RISK", text, service.name))
    return refusals, cautions


def _taken(name: str, key: str | None, service: Service) -> Refusal:
    return Refusal(
        "ENVIRONMENT_REFUSED",
        f"environment sets {name}, which the toolkit sets itself",
        f"{name} as the plan works it out",
        f"write {key} instead" if key else f"leave {name} out of environment of {service.name}",
        service.name,
    )


def split_arguments(
    arguments: Mapping[str, Any], release: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments that ``--config`` carries, and those that go on the command line."""
    flags = get_release(release).flags
    in_file: dict[str, Any] = {}
    on_line: dict[str, Any] = {}
    for name, value in arguments.items():
        flag = flags.get(name)
        (in_file if flag is None or flag.config else on_line)[name] = value
    return in_file, on_line
