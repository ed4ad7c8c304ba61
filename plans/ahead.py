"""What can be compiled for a new build of kernels while the old server still serves, or why not.

Pure. A change of release, model or driver gives a service a cache of its own, which is empty. What
needs no GPU is compiled into it before the switch: the kernels of FlashInfer that the build before
has compiled, by the new build's own tools. DeepGEMM's need a GPU; the release's own step, which is
a whole server, runs where the service's GPUs are free. All else is compiled at the first start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from facts.records import ServiceState, Survey, known
from locks.records import LockedModel
from plans.gpus import capability_of
from plans.hostdata import limit
from plans.launch import Launch
from plans.plan import ServicePlan
from plans.recorded import KERNELS, read_record
from releases.table import normalise_flag

AHEAD_LIMIT = 1800
"""Seconds after which FlashInfer's kernels are left to the first start. A service has compiled 5 to
20 of them; one takes 12 to 120 s of a processor's time (seen: page 85 s, norm 118 s on two busy
ones), and half of the node's processors work at once."""

DEEP_GEMM_LIMIT = 3600
"""Seconds that the release's own step may take: the default of its --timeout
(sglang/compile_deep_gemm.py of 0.5.22 and 0.5.23); SGLang's log says typically 10 to 20 min."""

DEEP_GEMM_MAJORS = ("9", "10")
"""Compute capabilities with DeepGEMM, by their major: from 9.0 on
(deep_gemm_wrapper/configurer.py of 0.5.23); 12.x only with some builds of it, so not counted."""

Kernels = Literal["new", "kept"]


@dataclass(frozen=True)
class Ahead:
    """What is compiled before the switch, and what the plan says of it."""

    lines: tuple[str, ...]
    before: str = ""  # directory of the cache that tells what is needed; empty: nothing is compiled
    build_before: str = ""
    capabilities: tuple[str, ...] = ()  # of the GPUs, each once: "8.9"
    deep_gemm: bool = False  # the release's own step too

    @property
    def acts(self) -> bool:
        """Whether anything is to be done on the node."""
        return bool(self.before) or self.deep_gemm


def kernels_of(launch: Launch, state: ServiceState, *, new_deployment: bool) -> Kernels | None:
    """Return whether the deployment's first start finds a new cache or one that was kept.

    None where it is not known: nothing was deployed before, or an older toolkit recorded it.
    """
    if not new_deployment:
        said = read_record(state.record).get(KERNELS)
        return said if said in ("new", "kept") else None
    build = state.launch.get("SGLANG_BUILD")
    if not build:
        return None if known(state.current) else "new"
    return "kept" if build == launch.build.key else "new"


def ahead(
    plan: ServicePlan, state: ServiceState, survey: Survey, locked: LockedModel | None
) -> Ahead | None:
    """Return what is compiled before a plan's switch; None where its caches stay, or nothing serves.

    A service that is down gains nothing by it: its kernels are compiled as it starts. ``locked``:
    what the lock has of a hub's model.
    """
    launch, build = plan.launch, state.launch.get("SGLANG_BUILD")
    if launch is None or not plan.new_deployment or plan.act != "restart":
        return None
    if state.active_state not in ("active", "reloading"):
        return None  # it starts, or crashes: a change is what it waits for
    if not build or build == launch.build.key:
        return None
    found = [capability_of(gpu) for gpu in plan.decision.gpus]
    there = tuple(dict.fromkeys(one for one in found if known(one)))
    lines, deep_gemm = [], False
    uses = _uses_deep_gemm(launch, there, survey, locked)
    if uses is not None:
        why_not = (
            _gpus_are_held(plan) if launch.service.rank is None else "it runs on several nodes"
        )
        deep_gemm = why_not is None
        lines.append(
            f"DeepGEMM's kernels ({uses}) are compiled before the switch, by the release's own step: "
            "its GPUs are free"
            if why_not is None
            else f"DeepGEMM's kernels ({uses}) are compiled at the first start, typically 10 to 20 min: "
            f"the release's own step needs its GPUs free, and {why_not}"
        )
    old = state.launch.get("SGLANG_KERNELS", "")
    why_not = _no_compiler(launch, len(there) < len(found) or not found, old)
    if why_not is not None:
        line = (
            f"no kernels are compiled before the switch: {why_not}; the first start compiles them"
        )
        return Ahead((line, *lines), deep_gemm=deep_gemm, capabilities=there)
    line = (
        "while it still serves, the kernels of FlashInfer that its last build compiled are compiled "
        f"for {' and '.join(there)} into the new cache, with little of the processors and at most "
        f"{AHEAD_LIMIT // 60} min; those of SGLang itself and of Triton at the first start"
    )
    return Ahead((line, *lines), old, build, there, deep_gemm)


def _no_compiler(launch: Launch, unknown_gpu: bool, old: str) -> str | None:
    """Return why nothing can be compiled without a GPU, or None."""
    if unknown_gpu:
        return "the compute capability of its GPUs is not known"
    if launch.environment is not None and launch.environment.cuda_home is None:
        return "its lock has no CUDA compiler"
    if not old.startswith("/"):
        return "the deployment before does not say where its cache is"
    return None


def _uses_deep_gemm(
    launch: Launch, capabilities: Iterable[str], survey: Survey, locked: LockedModel | None
) -> str | None:
    """Return why SGLang will compile kernels of DeepGEMM for a service, or None.

    SGLang takes it from compute capability 9.0 on for weights in fp8, unless another backend is
    chosen (layers/deep_gemm_wrapper/configurer.py and layers/quantization/fp8_utils.py of 0.5.23).
    """
    majors = {one.split(".")[0] for one in capabilities}
    environment = launch.service.environment
    off = environment.get("SGLANG_ENABLE_JIT_DEEPGEMM", "true").lower() in (
        "0",
        "false",
        "no",
        "off",
    )
    if off or not majors & set(DEEP_GEMM_MAJORS) or launch.server.get("device") == "cpu":
        return None
    given = {normalise_flag(name): value for name, value in launch.server.items()}
    backends = [given.get(name) for name in ("fp8-gemm-backend", "moe-runner-backend")]
    if "deep_gemm" in backends:
        return "its arguments name it"
    method = given.get("quantization") or _quantization(launch, survey, locked)
    chosen = [one for one in backends if one not in (None, "auto")]
    return "its weights are in fp8" if method == "fp8" and not chosen else None


def _quantization(launch: Launch, survey: Survey, locked: LockedModel | None) -> str | None:
    """Return how the model's own configuration says that its weights are quantised."""
    config: Mapping[str, Any] = {}
    if locked is not None and locked.config is not None:
        config = locked.config
    elif launch.service.is_local:
        there = survey.models.get(launch.service.model)
        try:
            read = json.loads(there.config) if there and isinstance(there.config, str) else {}
        except (ValueError, RecursionError):
            read = {}
        config = read if isinstance(read, dict) else {}
    said = config.get("quantization_config")
    method = said.get("quant_method") if isinstance(said, dict) else None
    return method if isinstance(method, str) else None


def _gpus_are_held(plan: ServicePlan) -> str | None:
    """Return which GPU of a service has no room for another server, or None where all are free.

    Beside a server that serves none is begun: it may need the rest of its memory at any time.
    """
    least = int(limit("BUSY_MIB"))
    for gpu in plan.decision.gpus:
        used = gpu.memory_used_mib
        if not known(used):
            return f"the memory in use of GPU {gpu.index} is {used}"
        if used >= least:
            return f"{used / 1024:.0f} GiB of GPU {gpu.index} are in use"
    return None
