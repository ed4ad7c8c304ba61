"""Small pure forms that several modules share: sizes, durations, references for people."""

from __future__ import annotations

from collections import Counter

from facts.records import Survey
from locks.records import LockedImage


def size(count: float) -> str:
    """Return bytes as people read them: ``15.2 GB`` (decimal units, as disks are sold)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def short_reference(image: LockedImage) -> str:
    """Return the image by digest, as Docker writes it: without its default registry's name."""
    prefix = "" if image.registry == "docker.io" else f"{image.registry}/"
    return f"{prefix}{image.repository}@{image.index_digest}"


def file_name(node: str) -> str:
    """Return a node's name as the name of a file: ``@fake/l4`` gives ``fake-l4``."""
    kept = "".join(char if char.isalnum() or char in "._-" else "-" for char in node)
    return kept.strip("-.") or "node"


def one_line(survey: Survey) -> str:
    """Return what a node is, in one line: GPUs, driver, system, Docker."""
    gpus = Counter(gpu.name for gpu in survey.nvidia.gpus)
    told = ", ".join(f"{count} × {name}" for name, count in gpus.items()) or "no GPU"
    driver, docker = survey.nvidia.driver_version, survey.docker.server_version
    system, machine = survey.host.os_name, survey.host.architecture
    return (
        f"{survey.node}  {told}, driver {driver}, {system} {machine}, "
        f"Docker {docker}, systemd {survey.systemd_version}"
    )


def survey_lines(survey: Survey) -> list[str]:
    """Return what is worth a line of its own: each GPU, what did not return, each service."""
    lines = []
    smi = survey.nvidia.smi
    if smi.text:
        lines.append(f"nvidia-smi ended with {smi.exit_code}: {smi.text.strip().splitlines()[0]}")
    for gpu in survey.nvidia.gpus:
        mig = f", MIG with {len(gpu.mig_devices)} devices" if gpu.mig_enabled is True else ""
        lines.append(
            f"GPU {gpu.index}  {gpu.name}, {gpu.uuid}, compute capability {gpu.compute_capability}, "
            f"{gpu.memory_total_mib} MiB, {gpu.memory_used_mib} in use{mig}"
        )
    if survey.unfinished:
        lines.append(f"did not return in time: {', '.join(survey.unfinished)}")
    for state in survey.services.values():
        lines.append(f"service {state.name}  {state.active_state}, deployment {state.current}")
    return lines
