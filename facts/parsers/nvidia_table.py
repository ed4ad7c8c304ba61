"""The table that plain ``nvidia-smi`` prints, of drivers 450 to 610.

Widths and rules differ between drivers; what is stable is that a GPU has a row with its number,
name, persistence, bus id and display, and that the rows below it up to the next rule are its.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from facts import fields
from facts.parsers.nvidia_query import SmiOutput
from facts.records import Gpu, MigDevice, Unknown

# From driver 610 on the header says "KMD Version" and "CUDA UMD Version".
_SMI = re.compile(r"NVIDIA-SMI\s+(\S+)")
_DRIVER = re.compile(r"(?:Driver|KMD) Version:\s*(\S+)")
_CUDA = re.compile(r"CUDA(?:\s+UMD)?\s+Version\s*:\s*(Not Found|\S+)")
# The bus id tells a GPU's row from a process's. "ERR!" may fill a cell to its left edge.
_GPU = re.compile(
    r"\|\s*(?P<index>\d{1,4})\s\s(?P<name>\S.*?)\s+(?P<persistence>On|Off|N/A|ERR!)\s*"
    r"\|\s*(?P<bus>[0-9A-Fa-f:.]+|N/A|ERR!)\s+(?:On|Off|N/A|ERR!)\s*\|(?P<rest>.*)\|",
    re.ASCII,
)
_MEMORY = re.compile(r"(\S+)\s*/\s*(\S+)")
_MIG = re.compile(
    r"\|\s*(?P<gpu>\d{1,4})\s+(?P<gi>\d{1,4})\s+(?P<ci>\d{1,4})\s+(?P<index>\d{1,4})\s*"
    r"\|\s*\S+\s*/\s*(?P<total>\S+)\s*\|",
    re.ASCII,
)


def parse_table(lines: Iterable[str]) -> SmiOutput:
    """Return what the table says; of text that holds no table, nothing."""
    rows = [line.rstrip() for line in lines]
    text = "\n".join(rows)
    gpus: list[Gpu] = []
    mig: dict[int, list[MigDevice]] = {}
    current: list[str] | None = None
    for line in rows:
        if found := _GPU.match(line):
            current = [line]
            gpus.append(_gpu(found))
        elif found := _MIG.match(line):
            mig.setdefault(int(found["gpu"]), []).append(_mig(found))
        elif not line.startswith("|"):
            current = None
        elif current is not None:
            current.append(line)
            gpus[-1] = _with_row(gpus[-1], line, len(current))
    return SmiOutput(
        gpus=tuple(replace(gpu, mig_devices=tuple(mig.get(gpu.index, ()))) for gpu in gpus),
        driver_version=fields.text("Nvidia.driver_version", _group(_DRIVER, text)),
        cuda_version=fields.text("Nvidia.cuda_version", _group(_CUDA, text)),
        smi_version=fields.text("Nvidia.smi_version", _group(_SMI, text)),
    )


def _group(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1] if found else None


def _gpu(found: re.Match[str]) -> Gpu:
    return Gpu(
        index=int(found["index"]),
        name=found["name"],
        bus_id=fields.text("Gpu.bus_id", found["bus"]),
        persistence=fields.flag("Gpu.persistence", found["persistence"]),
        fault=_fault(found[0]),
    )


def _with_row(gpu: Gpu, line: str, number: int) -> Gpu:
    """Return ``gpu`` with what its second row (memory) or third row (MIG mode) says."""
    gpu = replace(gpu, fault=gpu.fault or _fault(line))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    if len(cells) != 3:
        return gpu
    if number == 2:
        found = _MEMORY.fullmatch(cells[1])
        used, total = (found[1], found[2]) if found else (cells[1], cells[1])
        return replace(
            gpu,
            memory_used_mib=fields.number("Gpu.memory_used_mib", used),
            memory_total_mib=fields.number("Gpu.memory_total_mib", total),
        )
    if number == 3:
        # "Disabled*" is a mode that a reset of the GPU will change.
        enabled = fields.flag("Gpu.mig_enabled", cells[2].rstrip("*"))
        pending = enabled
        if cells[2].endswith("*") and not isinstance(enabled, Unknown):
            pending = not enabled
        return replace(gpu, mig_enabled=enabled, mig_pending=pending)
    return gpu


def _mig(found: re.Match[str]) -> MigDevice:
    return MigDevice(
        index=int(found["index"]),
        gpu_instance=int(found["gi"]),
        compute_instance=int(found["ci"]),
        memory_total_mib=fields.number("MigDevice.memory_total_mib", found["total"]),
    )


def _fault(line: str) -> str | None:
    return "ERR!" if "ERR!" in line else None
