"""A survey as it will be once what serves by hand is stopped: the plan is made from that."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from facts.records import Gpu, Survey, known
from plans.adopt.records import Entry

_SERVER = re.compile(r"sglang|python|docker-proxy|rootlessport")
"""Programs that hold a server's port or a GPU's memory, as ss and nvidia-smi name them."""


def as_stopped(survey: Survey, entries: Collection[Entry]) -> tuple[Survey, tuple[str, ...]]:
    """Return the survey without these servers, and what of it they held, in words.

    A port that another program holds stays taken. Memory of a GPU that nvidia-smi lays to no
    process stays in use.
    """
    ports = {int(entry.service.get("port", 30000)) for entry in entries}
    containers = {
        entry.found.container_name for entry in entries if entry.found.container_name is not None
    }
    held: list[str] = []
    listeners = survey.listeners
    if known(listeners):
        gone = [
            one
            for one in listeners
            if one.port in ports and (not known(one.process) or _SERVER.search(one.process))
        ]
        listeners = tuple(one for one in listeners if one not in gone)
        held += [f"port {port}" for port in sorted({one.port for one in gone})]
    gpus = tuple(_without(gpu) for gpu in survey.nvidia.gpus)
    held += [
        f"memory of GPU {old.index}"
        for old, new in zip(survey.nvidia.gpus, gpus, strict=True)
        if old != new
    ]
    others = survey.docker.gpu_containers
    if known(others):
        others = tuple(one for one in others if one.name not in containers)
    return (
        replace(
            survey,
            listeners=listeners,
            nvidia=replace(survey.nvidia, gpus=gpus),
            docker=replace(survey.docker, gpu_containers=others),
        ),
        tuple(held),
    )


def _without(gpu: Gpu) -> Gpu:
    servers = [one for one in gpu.processes if re.search("sglang|python", one.name)]
    if not servers:
        return gpu
    used = gpu.memory_used_mib
    sizes = [one.memory_mib for one in servers]
    if known(used):
        used = max(0, used - sum(size for size in sizes if known(size)))
        if not all(known(size) for size in sizes):
            used = 0 if len(servers) == len(gpu.processes) else used
    left = tuple(one for one in gpu.processes if one not in servers)
    return replace(gpu, processes=left, memory_used_mib=used)
