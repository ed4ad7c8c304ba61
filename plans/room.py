"""How much memory the GPUs of a service have, and who else holds some of it.

On unified memory (DGX Spark, Jetson) nvidia-smi gives no memory: the host's is the GPU's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from facts.records import GpuProcess, Survey, known
from plans.decision import Decision
from plans.gpus import Chosen, gpu_class, wanted_gpus
from plans.hostdata import limit
from plans.memory import GIB, MIB
from plans.ours import ours_on
from plans.refusals import Caution
from plans.wishes import Service

UNIFIED = ("spark", "tegra")
"""Classes of GPUs that have no memory of their own."""


@dataclass(frozen=True)
class Room:
    """The memory of the GPU that has least for a service."""

    where: str  # "GPU 0 (NVIDIA L4)"
    total: int  # bytes
    others: int | None  # bytes that others hold now; None: not known
    who: str = ""  # of the others, as far as nvidia-smi names them
    named: bool = False  # each of the others is named
    unified: bool = False
    text: str = ""  # what else belongs to the sum


def gib(count: float) -> str:
    """Return bytes as memory of GPUs is told: ``22.5 GiB``."""
    return f"{count / GIB:.1f} GiB"


def used_by(survey: Survey, service: Service, decision: Decision) -> tuple[Chosen, ...]:
    """Return the GPUs, or MIG devices, that a decision gives a service."""
    mine = {gpu.index for gpu in decision.gpus}
    return tuple(one for one in wanted_gpus(survey, service).usable if one.gpu.index in mine)


def room_of(survey: Survey, service: Service, decision: Decision) -> Room | str:
    """Return the room of the GPU with the least of it, or why that is not known."""
    chosen = used_by(survey, service, decision)
    if not chosen:
        return "no GPU is chosen"
    rooms = [_room(survey, one) for one in chosen]
    for room in rooms:
        if isinstance(room, str):
            return room
    there = [room for room in rooms if isinstance(room, Room)]
    return min(there, key=lambda room: room.total - (room.others or 0))


def _room(survey: Survey, one: Chosen) -> Room | str:
    if one.mig is not None:
        size = one.mig.memory_total_mib
        if not known(size):
            return f"the memory of {one.text} is {size}"
        return Room(one.text, size * MIB, None)
    if gpu_class(one.gpu, survey.host) in UNIFIED:
        return _host(survey, one)
    size = one.gpu.memory_total_mib
    if not known(size) or not size:
        return f"the memory of {one.text} is {size}"
    ours = ours_on(survey, one.gpu)
    least = int(limit("BUSY_MIB"))
    others = [
        each for each in one.gpu.processes if not (ours and re.search("sglang|python", each.name))
    ]
    counted = [each for each in others if known(each.memory_mib) and each.memory_mib >= least]
    held = sum(each.memory_mib for each in counted if known(each.memory_mib))
    used = one.gpu.memory_used_mib
    if counted:
        who = ", ".join(_named(each) for each in counted)
        return Room(one.text, size * MIB, held * MIB, who, named=True)
    if ours or not known(used):
        return Room(one.text, size * MIB, 0 if ours else None)
    if used < least:
        return Room(one.text, size * MIB, 0)
    return Room(one.text, size * MIB, used * MIB, "a process that nvidia-smi does not name")


def _named(process: GpuProcess) -> str:
    memory = f", {process.memory_mib} MiB" if known(process.memory_mib) else ""
    return f"{process.name} (pid {process.pid}{memory})"


def _host(survey: Survey, one: Chosen) -> Room | str:
    host = survey.host
    total, available = host.memory_total_bytes, host.memory_available_bytes
    if not known(total):
        return f"{one.text} shares the host's memory, which is {total}"
    swap = host.swap_total_bytes
    cached = host.memory_cached_bytes
    words = ["the host's memory is the GPU's", "the container has no limit of its own"]
    if known(available):
        words.append(f"{gib(available)} are available now")
    if known(cached):
        words.append(f"{gib(cached)} are page cache")
    words.append(
        f"swap ({gib(swap)}) is not counted: a GPU's memory is not swapped"
        if known(swap) and swap
        else "there is no swap"
        if known(swap)
        else f"swap is {swap}"
    )
    others = total - available if known(available) and not ours_on(survey, one.gpu) else None
    return Room(
        one.text,
        total,
        max(0, others) if others is not None else None,
        "the host's processes",
        unified=True,
        text="; ".join(words),
    )


def page_cache_caution(survey: Survey, room: Room, weights: float, service: str) -> list[Caution]:
    """Say where page cache takes the unified memory that the weights will need.

    A load on GB10 died beside 113 GiB of page cache although nearly all counted as available:
    https://github.com/MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks/issues/35
    """
    cached = survey.host.memory_cached_bytes
    if not room.unified or not known(cached) or cached + weights <= room.total:
        return []
    return [
        Caution(
            "PAGE_CACHE",
            f"{gib(cached)} of the host's {gib(room.total)} are page cache, and the weights need "
            f"{gib(weights)}: on unified memory the server may die while it loads. Before the "
            "start: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches",
            service,
        )
    ]
