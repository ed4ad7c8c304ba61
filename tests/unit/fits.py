"""Recorded models, locked; and services that are to serve them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from facts.records import Gpu, Survey
from locks.model_config import kept
from locks.records import LockedModel
from plans.fit import Fit, fit
from plans.runtime import decide
from tests.unit.surveys import gpu, survey, wish

MODELS = Path(__file__).parents[1] / "recorded" / "models"
NAMES = sorted(path.stem for path in MODELS.glob("*.yaml"))
MIB, GIB = 1 << 20, 1 << 30
L4 = 23034  # MiB, as nvidia-smi prints it
H100 = 81559


@cache
def recorded(name: str) -> dict[str, Any]:
    """Return what the file of a recorded model says."""
    found: dict[str, Any] = yaml.safe_load((MODELS / f"{name}.yaml").read_text())
    return found


def locked(name: str = "llama-3.1-8b", **changes: Any) -> LockedModel:
    """Return a recorded model as a lock has it."""
    data = recorded(name)
    fields = {
        "repo": "Qwen/Qwen3-8B",
        "asked_revision": "main",
        "commit": "c1" * 20,
        "resolved_at": "2026-11-30T04:00:00+00:00",
        "files": [
            {"path": path, "size_bytes": size, "sha256": "a" * 64}
            for path, size in data["files"].items()
        ],
        "config": None if data["config"] is None else kept(data["config"]),
        "index_bytes": data["index_bytes"],
        **changes,
    }
    return LockedModel.model_validate(fields)


def sized(weights: int, name: str = "llama-3.1-8b") -> LockedModel:
    """Return a recorded model with other bytes of weights."""
    files = [{"path": "model.safetensors", "size_bytes": weights, "sha256": "a" * 64}]
    return locked(name, files=files, index_bytes=None)


def gpus(count: int = 1, mib: Any = L4, **changes: Any) -> tuple[Gpu, ...]:
    """Return GPUs with this memory."""
    return tuple(gpu(index, memory_total_mib=mib, **changes) for index in range(count))


def fits(
    model: LockedModel | None,
    node: Survey | tuple[Gpu, ...] = (),
    service: dict[str, Any] | None = None,
    **arguments: Any,
) -> Fit:
    """Return whether a model fits on a node, or on GPUs; ``arguments`` are of the server."""
    there = node if isinstance(node, Survey) else survey(*node)
    flags = {name.replace("_", "-"): value for name, value in arguments.items()}
    one, wishes = wish({"output_cap": 1024, **(service or {}), "arguments": flags})
    return fit(there, one, decide(there, one, wishes), model)


def codes(found: Fit) -> list[str]:
    """Return the codes of what refuses."""
    return [refusal.code for refusal in found.refusals]


def cautions(found: Fit) -> list[str]:
    """Return the codes of what is said besides."""
    return [caution.code for caution in found.cautions]
