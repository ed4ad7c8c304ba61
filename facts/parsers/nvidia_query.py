"""``nvidia-smi --query-gpu=... --format=csv,noheader``, with or without units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from facts import fields
from facts.records import ABSENT, Gpu, Unknown

SHORT_QUERY = (
    "index", "name", "uuid", "driver_version",
    "memory.total", "memory.used", "mig.mode.current", "mig.mode.pending",
    "pci.bus_id", "persistence_mode",
)  # fmt: skip
QUERY = (*SHORT_QUERY[:4], "compute_cap", *SHORT_QUERY[4:], "addressing_mode")
"""What survey.sh asks, in its order; the short one is for drivers that refuse a field of it."""


@dataclass(frozen=True)
class SmiOutput:
    """What one form of nvidia-smi's output says."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | Unknown = ABSENT
    cuda_version: str | Unknown = ABSENT
    smi_version: str | Unknown = ABSENT


def fault_in(cells: Iterable[str]) -> str | None:
    """Return the first cell that says the GPU is lost or broken; None where none does."""
    return next((cell.strip() for cell in cells if cell.strip() in fields.FAULTS), None)


def parse_query(lines: Iterable[str], names: Sequence[str] = QUERY) -> SmiOutput:
    """Return the GPUs of a query for the fields ``names``.

    A line that has not exactly one cell per field is no row: a warning, or the text of a failure.
    Where the index was not asked for, the rows count up.
    """
    gpus: list[Gpu] = []
    driver: str | Unknown = ABSENT
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(names):
            continue
        row = dict(zip(names, cells, strict=True))
        index = fields.number("Gpu.index", row.get("index", str(len(gpus))))
        if isinstance(index, Unknown):
            continue
        gpus.append(_gpu(index, row))
        if isinstance(driver, Unknown):
            driver = fields.text("Nvidia.driver_version", row.get("driver_version"))
    return SmiOutput(tuple(gpus), driver)


def _gpu(index: int, row: Mapping[str, str]) -> Gpu:
    gpu = Gpu(
        index=index,
        name=row.get("name", ""),
        uuid=fields.text("Gpu.uuid", row.get("uuid")),
        compute_capability=fields.text("Gpu.compute_capability", row.get("compute_cap")),
        memory_total_mib=fields.number("Gpu.memory_total_mib", row.get("memory.total")),
        memory_used_mib=fields.number("Gpu.memory_used_mib", row.get("memory.used")),
        bus_id=fields.text("Gpu.bus_id", row.get("pci.bus_id")),
        mig_enabled=fields.flag("Gpu.mig_enabled", row.get("mig.mode.current")),
        mig_pending=fields.flag("Gpu.mig_pending", row.get("mig.mode.pending")),
        persistence=fields.flag("Gpu.persistence", row.get("persistence_mode")),
        addressing_mode=fields.text("Gpu.addressing_mode", row.get("addressing_mode")),
    )
    return replace(gpu, fault=fault_in(row.values()))
