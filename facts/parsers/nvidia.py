"""Driver, module and GPUs: the forms of nvidia-smi's output put together."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from typing import Literal

from facts import fields
from facts.parsers.nvidia_list import parse_list
from facts.parsers.nvidia_query import QUERY, SHORT_QUERY, SmiOutput, parse_query
from facts.parsers.nvidia_table import parse_table
from facts.parsers.nvidia_xml import parse_xml
from facts.parsers.systemd import active_states_of_nvidia
from facts.records import ABSENT, Gpu, Nvidia, Smi, Unknown
from facts.sections import NO_SUCH, TIMED_OUT, Section, Sections

Source = Literal["query", "xml", "table"]
QUERY_PART, XML_PART = "nvidia-smi-query", "nvidia-smi-xml"

_REFUSED_FIELD = re.compile(r'Field "(\S+)" is not a valid field')


def parse_nvidia(sections: Sections) -> Nvidia:
    """Return what the node says about its driver and GPUs."""
    outputs = _outputs(sections)
    source = next((source for source, output in outputs.items() if output.gpus), None)
    module = sections.value("nvidia.module", "nvidia")
    devices = sections.lines("nvidia.devices", "nvidia")
    modules = sections.lines("nvidia.modules", "nvidia")
    active_states = active_states_of_nvidia(sections)
    return Nvidia(
        smi=_smi(sections, source, outputs),
        driver_version=_first(*(output.driver_version for output in outputs.values())),
        cuda_version=_first(outputs["xml"].cuda_version, outputs["table"].cuda_version),
        smi_version=outputs["table"].smi_version,
        module_version=fields.text("Nvidia.module_version", module),
        module_kind=_module_kind(module),
        gpus=_with_mig_uuids(sections, _merged(source, outputs)),
        pci_devices=_pci_devices(sections),
        fabricmanager=active_states["nvidia-fabricmanager.service"],
        fabricmanager_version=fields.text(
            "Nvidia.fabricmanager_version", sections.value("nvidia.fabricmanager", "nvidia")
        ),
        persistenced=active_states["nvidia-persistenced.service"],
        nvlsm=_nvlsm(sections),
        nvswitch=any("nvidia-nvswitch" in line for line in _lines(devices)),
        rdma=any(line.startswith("/dev/infiniband/") for line in _lines(devices)),
        nouveau=any(line.startswith("nouveau ") for line in _lines(modules)),
    )


def is_vgpu_host(sections: Sections) -> bool:
    """Say whether the node runs NVIDIA's vGPU manager and hands its GPUs to virtual machines."""
    modules = _lines(sections.lines("nvidia.modules", "nvidia"))
    platform = _lines(sections.lines("platform", "host"))
    return (
        any(line.startswith(("nvidia_vgpu_vfio ", "nvidia_vgpu_vfio\t")) for line in modules)
        or any(line.startswith("vgpu ") for line in platform)
        or active_states_of_nvidia(sections)["nvidia-vgpu-mgr.service"] == "active"
    )


def _lines(lines: tuple[str, ...] | Unknown) -> tuple[str, ...]:
    return () if isinstance(lines, Unknown) else lines


def _outputs(sections: Sections) -> dict[Source, SmiOutput]:
    """Return each form of the output, the most telling first."""
    query, short = sections.get("smi.query"), sections.get("smi.query-short")
    parsed = parse_query(query.out, QUERY) if query else SmiOutput()
    if not parsed.gpus and short is not None:
        parsed = _short(short, query)
    xml, table = sections.get("smi.xml"), sections.get("smi.table")
    return {
        "query": parsed,
        "xml": parse_xml(xml.out) if xml else SmiOutput(),
        "table": parse_table(table.out) if table else SmiOutput(),
    }


def _short(short: Section, query: Section | None) -> SmiOutput:
    """Return the short query's output; what only the longer one asks this driver does not have."""
    parsed = parse_query(short.out, SHORT_QUERY)
    refused = _REFUSED_FIELD.search(query.text if query else "")
    reason = Unknown("unsupported", refused[0] if refused else "not a field of this driver")
    gpus = (replace(gpu, compute_capability=reason, addressing_mode=reason) for gpu in parsed.gpus)
    return replace(parsed, gpus=tuple(gpus))


def _smi(sections: Sections, source: Source | None, outputs: dict[Source, SmiOutput]) -> Smi:
    path = fields.text("Smi.path", sections.value("smi.path", QUERY_PART))
    ended = [
        section
        for name in ("smi.query-short", "smi.query", "smi.table", "smi.xml")
        if (section := sections.get(name)) is not None
    ]
    if not ended:
        # Without nvidia-smi only its path was asked for; otherwise it never came back.
        return Smi(exit_code=_never_returned(sections, path), path=path)
    if outputs["query"].gpus:
        ended = [section for section in ended if section.name.startswith("smi.query")]
    section = ended[0]
    exit_code: int | Unknown = section.rc
    if section.rc in TIMED_OUT:
        exit_code = Unknown("unreadable", "did not return in time")
    elif section.rc == NO_SUCH and path == ABSENT:
        exit_code = ABSENT
    failed = exit_code != 0 or source is None
    # Failures are printed on standard output, seen also with exit code 0 under Windows.
    text = section.text.strip() or ("" if section.rc in TIMED_OUT else section.message)
    return Smi(exit_code, text[:4000] if failed else "", path, source)


def _never_returned(sections: Sections, path: str | Unknown) -> Unknown:
    if isinstance(path, Unknown):
        return path
    unfinished = sections.missing(QUERY_PART)
    return unfinished if unfinished != ABSENT else Unknown("unreadable", "nvidia-smi did not end")


def _first(*values: str | Unknown) -> str | Unknown:
    """Return the first value that is known, else the first reason that says more than absent."""
    known = [value for value in values if not isinstance(value, Unknown)]
    reasons = [value for value in values if isinstance(value, Unknown) and value != ABSENT]
    return (known or reasons or [ABSENT])[0]


def _merged(source: Source | None, outputs: dict[Source, SmiOutput]) -> tuple[Gpu, ...]:
    """Return the GPUs of the first form that lists any, completed from the others."""
    if source is None:
        return ()
    others = [output for name, output in outputs.items() if name != source]
    gpus = []
    for gpu in outputs[source].gpus:
        for output in others:
            twin = next((other for other in output.gpus if _same(gpu, other)), None)
            if twin is not None:
                gpu = _completed(gpu, twin)
        gpus.append(gpu)
    return tuple(gpus)


def _with_mig_uuids(sections: Sections, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    section = sections.get("smi.list")
    listed = parse_list(section.out) if section else {}
    named = []
    for gpu in gpus:
        uuids = listed.get(gpu.index, {})
        devices = (
            replace(each, uuid=uuids[each.index])
            if each.index in uuids and isinstance(each.uuid, Unknown)
            else each
            for each in gpu.mig_devices
        )
        named.append(replace(gpu, mig_devices=tuple(devices)))
    return tuple(named)


def _same(one: Gpu, other: Gpu) -> bool:
    for mine, theirs in ((one.uuid, other.uuid), (one.bus_id, other.bus_id)):
        if isinstance(mine, str) and isinstance(theirs, str):
            return mine.lower() == theirs.lower()
    return one.index == other.index


def _completed(gpu: Gpu, other: Gpu) -> Gpu:
    """Return ``gpu`` with every field it lacks taken from ``other``."""
    changes: dict[str, object] = {}
    for field in dataclasses.fields(Gpu):
        mine, theirs = getattr(gpu, field.name), getattr(other, field.name)
        lacking = mine in (None, (), "") or mine == ABSENT
        unknown = isinstance(mine, Unknown) and not isinstance(theirs, Unknown)
        if (lacking or unknown) and theirs not in (None, ()):
            changes[field.name] = theirs
    return replace(gpu, **changes)  # type: ignore[arg-type]  # each is that field's own type


def _module_kind(module: str | Unknown) -> Literal["open", "proprietary"] | Unknown:
    if isinstance(module, Unknown):
        return module
    if "Open Kernel Module" in module:
        return "open"
    return "proprietary" if "Kernel Module" in module else Unknown("malformed", module[:200])


def _pci_devices(sections: Sections) -> int | Unknown:
    lines = sections.lines("nvidia.pci", "nvidia")
    if isinstance(lines, Unknown):
        return lines
    words = [line.split() for line in lines]
    return sum(1 for word in words if len(word) == 3 and word[1].startswith("0x03"))


def _nvlsm(sections: Sections) -> bool | Unknown:
    value = sections.value("nvidia.nvlsm", "nvidia")
    if isinstance(value, str):
        return True
    return False if value == ABSENT and sections.get("nvidia.nvlsm") else value
