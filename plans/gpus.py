"""What the GPUs of a node are, and which of them a service can use.

Nothing here looks at images: that is ``plans.rules``. Here a GPU is found by
the name the operator gave it, gets its class and compute capability, and is
put aside where it is broken, split (MIG) or about to change its mode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict

from facts.records import ABSENT, Gpu, Host, MigDevice, Survey, Unknown, known
from plans.hostdata import host_data, limit
from plans.ours import ours_on
from plans.refusals import Caution, Refusal
from plans.rules import GpuClass
from plans.wishes import Service
from releases.table import capability_of as capability_by_name
from releases.table import class_of
from releases.yaml_text import read_yaml


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Brands(_Data):
    source: str
    classes: Mapping[str, GpuClass]


class GpuData(_Data):
    """What ``plans/data/gpus.yaml`` says."""

    brands: _Brands
    named_before_brand: tuple[GpuClass, ...]


@cache
def gpu_data() -> GpuData:
    """Return what the file says, validated."""
    text = Path(__file__).with_name("data").joinpath("gpus.yaml").read_text(encoding="utf-8")
    return GpuData.model_validate(read_yaml(text))


def gpu_class(gpu: Gpu, host: Host) -> GpuClass:
    """Return what a GPU is sold as: by NVML's brand, else by its marketing name.

    Integrated GPUs (DGX Spark, Jetson) are told by name first, having a data center brand.
    ``unknown`` where neither is in a list.
    """
    data = gpu_data()
    named = class_of(gpu.name)
    if host.tegra or named == "tegra":
        return "tegra"
    if named is not None and named in data.named_before_brand:
        return named
    if gpu.virtualization_mode == "VGPU":
        return "vgpu"
    if known(gpu.brand) and gpu.brand in data.brands.classes:
        return data.brands.classes[gpu.brand]
    return "unknown" if named is None else cast("GpuClass", named)


def capability_of(gpu: Gpu) -> str | Unknown:
    """Return a GPU's compute capability ("8.9"): what nvidia-smi gave, else what its name says.

    Where neither gives one the Unknown of nvidia-smi is returned.
    """
    given = gpu.compute_capability
    if known(given) and re.fullmatch(r"\d+\.\d+", given):
        return given
    named = capability_by_name(gpu.name)
    if named is not None:
        return named
    return given if not known(given) else Unknown("malformed", given)


def capability_is_assumed(gpu: Gpu) -> bool:
    """Say whether a GPU's compute capability is known by its name only."""
    given = gpu.compute_capability
    return not (known(given) and re.fullmatch(r"\d+\.\d+", given)) and known(capability_of(gpu))


def called(gpu: Gpu) -> str:
    """Return how texts name a GPU: ``GPU 0 (NVIDIA L4)``."""
    return f"GPU {gpu.index} ({gpu.name})"


@dataclass(frozen=True)
class Chosen:
    """A GPU, or one MIG device of it, that a service could use."""

    gpu: Gpu
    mig: MigDevice | None = None

    @property
    def uuid(self) -> str | Unknown:
        """The UUID that names it to a container."""
        return self.mig.uuid if self.mig else self.gpu.uuid

    @property
    def text(self) -> str:
        """How texts name it."""
        return (
            f"MIG device {self.mig.index} of {called(self.gpu)}" if self.mig else called(self.gpu)
        )


@dataclass(frozen=True)
class Problem:
    """Why a GPU that is there cannot be used."""

    code: str
    seen: str
    needed: str
    advice: str

    def refusal(self, service: str | None) -> Refusal:
        """Return it as the refusal it is where the operator named the GPU."""
        return Refusal(self.code, self.seen, self.needed, self.advice, service)


def problem_of(gpu: Gpu) -> Problem | None:
    """Return why this GPU cannot be used as a whole, or None.

    A value that its driver doesn't know (``unsupported``) is no problem: consumer cards have
    neither ECC nor a recovery action.
    """
    return _broken(gpu) or _mig(gpu)


def _broken(gpu: Gpu) -> Problem | None:
    signs = []
    if gpu.fault is not None:
        signs.append(f"nvidia-smi shows {gpu.fault}")
    action = gpu.recovery_action
    if known(action) and action not in host_data().recovery_fine:
        signs.append(f"recovery action {action}")
    if gpu.remapped_failure is True:
        signs.append("row remapping failed")
    if gpu.remapped_pending is True:
        signs.append("row remapping pending")
    if known(gpu.ecc_uncorrected) and gpu.ecc_uncorrected > 0:
        signs.append(f"{gpu.ecc_uncorrected} uncorrected ECC errors since the driver was loaded")
    if not signs:
        return None
    act = action if known(action) and action not in host_data().recovery_fine else "Reset"
    mend = {
        "Reset": f"Stop what uses it, then: sudo nvidia-smi --gpu-reset -i {gpu.index}",
        "GPU Reset": f"Stop what uses it, then: sudo nvidia-smi --gpu-reset -i {gpu.index}",
    }.get(act, f"The driver asks for: {act}. Stop what uses the GPUs, then: sudo reboot")
    if gpu.remapped_failure is True:
        mend = "Have the GPU replaced: row remapping failed, so a reset does not mend it"
    return Problem(
        "GPU_DEGRADED",
        f"{called(gpu)}: {', '.join(signs)}",
        "a GPU without faults",
        f"{mend}. Read `nvidia-smi -q -i {gpu.index}` and `sudo dmesg | grep -i xid`.",
    )


def _mig(gpu: Gpu) -> Problem | None:
    pending = gpu.mig_pending
    if known(pending) and known(gpu.mig_enabled) and pending != gpu.mig_enabled:
        state = "on" if gpu.mig_enabled else "off"
        after = "on" if pending else "off"
        return Problem(
            "MIG_PENDING",
            f"{called(gpu)}: MIG is {state} and will be {after} after a reset",
            "one MIG mode, current and pending",
            f"Stop what uses it, then: sudo nvidia-smi --gpu-reset -i {gpu.index} "
            f"(or take it back: sudo nvidia-smi -i {gpu.index} -mig {int(gpu.mig_enabled)})",
        )
    if gpu.mig_enabled is True:
        devices = [one.uuid for one in gpu.mig_devices if known(one.uuid)]
        if devices:
            advice = f"Name one MIG device: gpus: ['{devices[0]}'], with tp_size: 1"
            if len(devices) > 1:
                advice += f" (there are {', '.join(devices)})"
        elif gpu.mig_devices:
            advice = "Read the UUIDs with `nvidia-smi -L` and name one: gpus: ['MIG-…']"
        else:
            advice = (
                f"It has no MIG device. Make one (sudo nvidia-smi mig -i {gpu.index} -cgi 0 -C), "
                f"or turn MIG off: sudo nvidia-smi -i {gpu.index} -mig 0"
            )
        return Problem(
            "MIG_NOT_NAMED",
            f"{called(gpu)}: MIG is on, with {len(gpu.mig_devices)} MIG devices",
            "a whole GPU, or one MIG device named by its UUID",
            advice,
        )
    return None


@dataclass(frozen=True)
class Wanted:
    """The GPUs that the operator's words name, before any image is looked at."""

    usable: tuple[Chosen, ...]
    problems: tuple[tuple[Gpu, Problem], ...]  # GPUs that are there and cannot be used
    refusals: tuple[Refusal, ...]  # of names that name nothing, and of MIG with tensor parallelism

    @property
    def all_gpus(self) -> tuple[Gpu, ...]:
        """Every GPU that was meant, usable or not, once each."""
        found = {one.gpu.index: one.gpu for one in self.usable}
        found.update({gpu.index: gpu for gpu, _ in self.problems})
        return tuple(found[index] for index in sorted(found))


def wanted_gpus(survey: Survey, service: Service) -> Wanted:
    """Return the GPUs that ``gpus:`` of a service names on this node.

    ``all`` leaves out what cannot be used; a GPU that was named and cannot be used refuses.
    """
    gpus = survey.nvidia.gpus
    if service.gpus == "all":
        usable = tuple(Chosen(gpu) for gpu in gpus if problem_of(gpu) is None)
        left = tuple((gpu, found) for gpu in gpus if (found := problem_of(gpu)) is not None)
        return Wanted(usable, left, ())
    chosen: list[Chosen] = []
    problems: list[tuple[Gpu, Problem]] = []
    refusals: list[Refusal] = []
    for name in service.gpus:
        one = _find(gpus, name)
        if one is None:
            refusals.append(_not_found(gpus, name, service.name))
            continue
        found = _broken(one.gpu) if one.mig else problem_of(one.gpu)
        if found is not None:
            problems.append((one.gpu, found))
            refusals.append(found.refusal(service.name))
        elif any(other.gpu == one.gpu and other.mig == one.mig for other in chosen):
            refusals.append(_twice(one, name, service.name))
        else:
            chosen.append(one)
    refusals += _mig_parallel(chosen, service)
    return Wanted(tuple(chosen), tuple(problems), tuple(refusals))


def _find(gpus: tuple[Gpu, ...], name: int | str) -> Chosen | None:
    for gpu in gpus:
        if name == gpu.index or name == gpu.uuid:
            return Chosen(gpu)
        for device in gpu.mig_devices:
            if name == device.uuid:
                return Chosen(gpu, device)
    return None


def _not_found(gpus: tuple[Gpu, ...], name: int | str, service: str) -> Refusal:
    there = ", ".join(
        f"{gpu.index} ({gpu.uuid})" if known(gpu.uuid) else str(gpu.index) for gpu in gpus
    )
    return Refusal(
        "GPU_NOT_FOUND",
        f"gpus: names {name}; the node has {there}",
        "indexes or UUIDs that nvidia-smi lists",
        "Read them on the node with `nvidia-smi -L` and mend `gpus:` in the inventory",
        service,
    )


def _twice(one: Chosen, name: int | str, service: str) -> Refusal:
    return Refusal(
        "GPU_NOT_FOUND",
        f"gpus: names {one.text} twice, once as {name}",
        "each GPU once",
        "Take one of the two names out of `gpus:`",
        service,
    )


def _mig_parallel(chosen: list[Chosen], service: Service) -> list[Refusal]:
    devices = [one for one in chosen if one.mig]
    if not devices or (gpus_needed(service) == 1 and len(chosen) == 1):
        return []
    return [
        Refusal(
            "MIG_TENSOR_PARALLEL",
            f"{gpus_needed(service)} GPUs are needed and gpus: names {len(chosen)}, "
            f"{len(devices)} of them MIG devices",
            "one MIG device alone, with tp_size: 1: a CUDA process sees one MIG device",
            "Name one MIG device and set tp_size: 1, or turn MIG off: sudo nvidia-smi -mig 0",
            service.name,
        )
    ]


def gpus_needed(service: Service) -> int:
    """Return how many GPUs of this node a service uses: tensor × pipeline × data parallel.

    With DP attention the data parallel groups are inside the tensor parallel one
    (https://docs.sglang.ai/advanced_features/dp_dpa_smg_guide.html). Over several nodes each has
    its part.
    """
    given = {name.lstrip("-").replace("_", "-"): value for name, value in service.arguments.items()}

    def count(*names: str) -> int:
        return max((_count(given.get(name)) for name in names), default=1)

    inside = bool(given.get("enable-dp-attention")) or count("attn-dp-size") > 1
    data = 1 if inside else count("dp-size", "data-parallel-size")
    total = service.tp_size * count("pp-size", "pipeline-parallel-size") * data
    return -(-total // (len(service.nodes) or 1))


def _count(value: Any) -> int:
    try:
        return max(1, int(value))
    except (TypeError, ValueError):
        return 1


def cautions_of(chosen: tuple[Chosen, ...], survey: Survey, service: str) -> list[Caution]:
    """Return what the operator should know about the GPUs that a service uses."""
    cautions = []
    for one in chosen:
        gpu = one.gpu
        if capability_is_assumed(gpu):
            cautions.append(
                Caution(
                    "ASSUMED_CAPABILITY",
                    f"{called(gpu)}: nvidia-smi gave no compute capability; "
                    f"{capability_of(gpu)} is assumed from its name",
                    service,
                )
            )
        if busy := _used_by_others(gpu, ours_on(survey, gpu)):
            cautions.append(Caution("GPU_IN_USE", f"{one.text}: {busy}", service))
        license_status = gpu.license_status
        if known(license_status) and license_status.startswith("Unlicensed"):
            cautions.append(
                Caution(
                    "VGPU_UNLICENSED",
                    f"{called(gpu)}: this vGPU is slowed down, not licensed ({license_status})",
                    service,
                )
            )
    unread: dict[tuple[str, ...], list[str]] = {}
    for one in chosen:
        unread.setdefault(_unread(one.gpu), []).append(called(one.gpu))
    cautions += [
        Caution(
            "ASSUMED_HEALTH",
            f"{', '.join(names)}: {', '.join(values)} could not be read; assumed good",
            service,
        )
        for values, names in unread.items()
        if values
    ]
    kinds = sorted({str(capability_of(one.gpu)) for one in chosen})
    if len(kinds) > 1:
        cautions.append(
            Caution(
                "GPU_MIXED",
                f"the GPUs of this service differ (compute capability {', '.join(kinds)}): "
                "the most restrictive decides, and the slowest sets the pace",
                service,
            )
        )
    return cautions


def _unread(gpu: Gpu) -> tuple[str, ...]:
    values = {
        "MIG mode": gpu.mig_enabled,
        "recovery action": gpu.recovery_action,
        "ECC errors": gpu.ecc_uncorrected,
        "row remapping": gpu.remapped_failure,
    }
    # Where nvidia-smi -q was read at all, what it does not mention is not a fact of this GPU.
    health = (gpu.recovery_action, gpu.ecc_uncorrected, gpu.remapped_failure)
    asked = any(value != ABSENT for value in health)
    bad = ("unreadable", "malformed") if asked else ("unreadable", "malformed", "absent")
    return tuple(
        name
        for name, value in values.items()
        if isinstance(value, Unknown)
        and (value.why in bad or (name == "MIG mode" and value.why == "absent"))
    )


def _used_by_others(gpu: Gpu, ours: bool) -> str | None:
    """Say who holds a GPU's memory; servers of ours that run on this node are not others.

    Which process is which service's cannot be told from here: where one of ours runs, every
    SGLang process is taken for ours.
    """
    least = int(limit("BUSY_MIB"))
    others = [
        one
        for one in gpu.processes
        if not (ours and re.search(r"sglang|python", one.name))
        and not (known(one.memory_mib) and one.memory_mib < least)
    ]
    if others:
        words = [
            f"{one.name} (pid {one.pid}"
            + (f", {one.memory_mib} MiB)" if known(one.memory_mib) else ")")
            for one in others
        ]
        return f"in use by {', '.join(words)}"
    used = gpu.memory_used_mib
    if not ours and not gpu.processes and known(used) and used >= least:
        return f"{used} MiB of its memory are in use, by a process that nvidia-smi does not name"
    return None
