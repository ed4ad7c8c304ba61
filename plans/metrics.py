"""What a fleet is, as metrics for the textfile collector of Prometheus' node_exporter.

Pure. The format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from facts.records import ServiceState, Survey, known
from plans.rules import version_of
from plans.states import service_lines

_HELP = {
    "sglang_node_surveyed": "Whether the node could be surveyed.",
    "sglang_node_survey_timestamp_seconds": "When the nodes were surveyed, in Unix time.",
    "sglang_node_gpus": "GPUs that nvidia-smi lists.",
    "sglang_node_driver_info": "The NVIDIA driver.",
    "sglang_node_reboot_needed": "Whether the driver's libraries and its kernel module differ.",
    "sglang_service_ready": "Whether the service says that it can generate.",
    "sglang_service_info": "What the service runs; frozen is true for the last CUDA 12 release.",
    "sglang_service_drift": "Things that are not as the toolkit left them.",
    "sglang_service_restarts": "Restarts by systemd itself since it was started.",
    "sglang_service_deployment": "Number of the current deployment.",
    "sglang_door_certificate_end_timestamp_seconds": "When the certificate ends that the door shows.",
}


def metrics(surveys: Iterable[Survey], lost: Iterable[str], now: float) -> str:
    """Return the metrics of a fleet as text.

    ``lost`` are the nodes that could not be surveyed: they have that one metric alone, since
    nothing else of them is known. ``now``: seconds since 1970. A value that a survey could not
    give is left out, never 0.
    """
    found: dict[str, list[str]] = {name: [] for name in _HELP}

    def add(name: str, value: float, **labels: str) -> None:
        told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        found[name].append(f"{name}{{{told}}} {value:.15g}" if told else f"{name} {value:.15g}")

    add("sglang_node_survey_timestamp_seconds", now)
    for node in lost:
        add("sglang_node_surveyed", 0, node=node)
    for survey in surveys:
        node, nvidia = survey.node, survey.nvidia
        add("sglang_node_surveyed", 1, node=node)
        if known(nvidia.smi.exit_code) and nvidia.smi.exit_code == 0:
            add("sglang_node_gpus", len(nvidia.gpus), node=node)
        if known(nvidia.driver_version):
            add("sglang_node_driver_info", 1, node=node, driver=nvidia.driver_version)
        if known(survey.door.until) and survey.door.until.isdigit():
            name = "sglang_door_certificate_end_timestamp_seconds"
            add(name, int(survey.door.until), node=node)
        mismatch = _mismatch(survey)
        if mismatch is not None:
            add("sglang_node_reboot_needed", mismatch, node=node)
        for line in service_lines(survey):
            state = survey.services[line.name]
            labels = {"node": node, "service": line.name}
            add("sglang_service_ready", line.state == "ready", **labels)
            add("sglang_service_info", 1, **labels, **_what_runs(state.launch))
            add("sglang_service_drift", len(line.drift), **labels)
            for name, value in _numbers(state).items():
                add(name, value, **labels)
    lines = []
    for name, samples in found.items():
        if samples:
            lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} gauge", *samples]
    return "\n".join(lines) + "\n"


def _mismatch(survey: Survey) -> bool | None:
    libraries, module = survey.nvidia.driver_version, survey.nvidia.module_version
    if "driver/library version mismatch" in survey.nvidia.smi.text.lower():
        return True
    if not known(libraries) or not known(module):
        return None
    return version_of(libraries) != version_of(module)


def _what_runs(launch: Mapping[str, str]) -> dict[str, str]:
    tag = launch.get("SGLANG_IMAGE_TAG", "")
    return {
        "release": launch.get("SGLANG_RELEASE", "unknown"),
        "runtime": launch.get("SGLANG_RUNTIME", "unknown"),
        "build": launch.get("SGLANG_BUILD", "unknown"),
        "frozen": "true" if tag.endswith("-cu129") else "false",
    }


def _numbers(state: ServiceState) -> dict[str, int]:
    given = {
        "sglang_service_restarts": state.restarts,
        "sglang_service_deployment": state.current,
    }
    return {name: value for name, value in given.items() if known(value)}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
