"""``nvidia-smi -q -x``: what the query form has no field for.

Element names are those of NVIDIA's nvsmi_device DTDs, versions 10 to 13; where a driver has no
such element the field is absent.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree

from facts import fields
from facts.parsers.nvidia_query import SmiOutput, fault_in
from facts.records import ABSENT, Gpu, GpuProcess, MigDevice, Unknown


def parse_xml(lines: Iterable[str]) -> SmiOutput:
    """Return what the XML says; of text that is no XML, nothing."""
    text = "\n".join(lines).strip()
    start = text.find("<?xml")
    if start < 0:
        return SmiOutput()
    try:
        root = ElementTree.fromstring(text[start:])
    except (ElementTree.ParseError, ValueError):
        return SmiOutput(driver_version=Unknown("malformed", "nvidia-smi -q -x is no XML"))
    return SmiOutput(
        gpus=tuple(_gpu(index, gpu) for index, gpu in enumerate(root.findall("gpu"))),
        driver_version=fields.text("Nvidia.driver_version", root.findtext("driver_version")),
        cuda_version=fields.text("Nvidia.cuda_version", root.findtext("cuda_version")),
    )


def _gpu(index: int, gpu: ElementTree.Element) -> Gpu:
    def text(key: str, path: str) -> str | Unknown:
        return fields.text(f"Gpu.{key}", gpu.findtext(path))

    def number(key: str, path: str) -> int | Unknown:
        return fields.number(f"Gpu.{key}", gpu.findtext(path))

    def flag(key: str, path: str) -> bool | Unknown:
        return fields.flag(f"Gpu.{key}", gpu.findtext(path))

    return Gpu(
        index=index,
        name=gpu.findtext("product_name", "").strip(),
        uuid=text("uuid", "uuid"),
        memory_total_mib=number("memory_total_mib", "fb_memory_usage/total"),
        memory_used_mib=number("memory_used_mib", "fb_memory_usage/used"),
        bus_id=text("bus_id", "pci/pci_bus_id"),
        brand=text("brand", "product_brand"),
        virtualization_mode=text(
            "virtualization_mode", "gpu_virtualization_mode/virtualization_mode"
        ),
        license_status=text("license_status", "vgpu_software_licensed_product/license_status"),
        mig_enabled=flag("mig_enabled", "mig_mode/current_mig"),
        mig_pending=flag("mig_pending", "mig_mode/pending_mig"),
        mig_devices=tuple(_mig_devices(gpu)),
        persistence=flag("persistence", "persistence_mode"),
        addressing_mode=text("addressing_mode", "addressing_mode"),
        ecc_uncorrected=_ecc_uncorrected(gpu),
        remapped_pending=flag("remapped_pending", "remapped_rows/remapped_row_pending"),
        remapped_failure=flag("remapped_failure", "remapped_rows/remapped_row_failure"),
        recovery_action=text("recovery_action", "gpu_recovery_action"),
        fabric_state=text("fabric_state", "fabric/state"),
        fabric_status=text("fabric_status", "fabric/status"),
        fault=fault_in(element.text or "" for element in gpu.iter()),
        processes=tuple(_processes(gpu)),
    )


def _mig_devices(gpu: ElementTree.Element) -> Iterable[MigDevice]:
    for device in gpu.findall("mig_devices/mig_device"):
        index = fields.number("MigDevice.index", device.findtext("index"))
        instance = fields.number("MigDevice.gpu_instance", device.findtext("gpu_instance_id"))
        compute = fields.number(
            "MigDevice.compute_instance", device.findtext("compute_instance_id")
        )
        if isinstance(index, int) and isinstance(instance, int) and isinstance(compute, int):
            yield MigDevice(
                index=index,
                gpu_instance=instance,
                compute_instance=compute,
                uuid=fields.text("MigDevice.uuid", device.findtext("uuid")),
                memory_total_mib=fields.number(
                    "MigDevice.memory_total_mib", device.findtext("fb_memory_usage/total")
                ),
            )


def _ecc_uncorrected(gpu: ElementTree.Element) -> int | Unknown:
    """Return the volatile uncorrectable errors of all kinds together.

    Newer drivers count SRAM (parity and SEC-DED apart) and DRAM, older ones double-bit errors
    per memory with a total.
    """
    volatile = gpu.find("ecc_errors/volatile")
    if volatile is None:
        return ABSENT
    counts = [element.text for element in volatile if "uncorrect" in element.tag]
    if not counts:
        counts = [volatile.findtext("double_bit/total")]
    values = [fields.number("Gpu.ecc_uncorrected", count) for count in counts]
    known = [value for value in values if isinstance(value, int)]
    return sum(known) if known else values[0]


def _processes(gpu: ElementTree.Element) -> Iterable[GpuProcess]:
    for process in gpu.findall("processes/process_info"):
        pid = fields.number("GpuProcess.pid", process.findtext("pid"))
        if isinstance(pid, int):
            name = fields.text("GpuProcess.name", process.findtext("process_name"))
            yield GpuProcess(
                pid=pid,
                name=name if isinstance(name, str) else "",
                memory_mib=fields.number("GpuProcess.memory_mib", process.findtext("used_memory")),
            )
