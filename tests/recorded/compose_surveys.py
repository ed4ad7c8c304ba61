"""Composes the surveys of the demonstration inventory: ``python -m tests.recorded.compose_surveys``.

No GPU host was at hand. Each survey is put together from recorded outputs of nvidia-smi (their
sources are in tests/recorded/nvidia-smi/index.yaml) and from what such a host prints otherwise:
the shape of each section is survey.sh's, run on real Docker hosts without a GPU.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from facts.parsers.nvidia_query import QUERY

HERE = Path(__file__).parent
DEMO = HERE.parents[1] / "inventories" / "demo"
SPACES = {  # and the parent that exists on a node where nothing was deployed yet
    "/var/lib/sglang": "/var/lib",
    "/var/cache/sglang": "/var/cache",
    "/var/lib/sglang/hub": "/var/lib",
    "/opt/sglang": "/opt",
    "/etc/systemd/system": "/etc/systemd/system",
}
UNIT = "/etc/systemd/system/sglang@.service"
UUID = "GPU-00000000-0000-0000-0000-00000000000{}"
MIG_UUID = "MIG-00000000-0000-0000-0000-00000000001{}"
UBUNTU = {"22.04": ("22.04.5", "jammy", "2.35", "249 (249.11-0ubuntu3.16)", "3.10.12"),
          "24.04": ("24.04.3", "noble", "2.39", "255 (255.4-1ubuntu8.10)", "3.12.3")}  # fmt: skip


@dataclass(frozen=True)
class Card:
    """A GPU as nvidia-smi's query and XML give it."""

    name: str
    bus: str
    capability: str
    memory: str  # total, as printed
    brand: str = "NVIDIA"
    mig: str = "[N/A]"
    mig_devices: tuple[tuple[int, str], ...] = ()  # GPU instance, memory
    addressing: str = "None"
    fabric: str = "N/A"


@dataclass(frozen=True)
class Machine:
    """What one survey says."""

    name: str
    recorded: tuple[str, ...]  # outputs of nvidia-smi that it is composed from
    driver: str
    cuda: str
    cards: tuple[Card, ...]
    ubuntu: str
    kernel: str
    docker: str
    ctk: str | None  # version of NVIDIA's container toolkit
    open_module: bool = True
    module: str | None = None  # its version, where not the driver's
    cdi: bool = True
    arch: str = "x86_64"
    memory_kb: int = 65_799_832
    free_kb: int = 1_503_238_552
    dgx: str | None = None
    fabricmanager: bool = False
    failure: tuple[int, str] | None = None  # exit code and text of nvidia-smi
    lines: list[str] = field(default_factory=list)

    def add(self, name: str, text: str | list[str] = "", rc: int = 0) -> None:
        """Add a section; ``text`` is the program's output."""
        body = text if isinstance(text, str) else "".join(f"{line}\n" for line in text)
        self.lines.append(f"@ {name} rc={rc}")
        self.lines.extend(f" {line}" for line in body.split("\n"))


def recorded(name: str) -> str:
    """Return a recorded output of nvidia-smi without the comments at its top."""
    return re.sub(r"\A(# .*\n)*", "", (HERE / "nvidia-smi" / f"{name}.txt").read_text())


def compose(machine: Machine) -> str:
    """Return the survey as a file's text."""
    add = machine.add
    point, codename, glibc, systemd, python = UBUNTU[machine.ubuntu]
    add("docker.images")
    add("podman", rc=127)
    add("docker.path", ["/usr/bin/docker"] * 2)
    versions = {"Client": {"Version": machine.docker}, "Server": {"Version": machine.docker}}
    add("docker.version", [json.dumps(versions)])
    runtimes = ["io.containerd.runc.v2", "runc", *(["nvidia"] if machine.ctk else [])]
    info: dict[str, object] = {
        "Driver": "overlay2", "DriverStatus": [["Backing Filesystem", "extfs"]],
        "CgroupDriver": "systemd", "CgroupVersion": "2", "DockerRootDir": "/var/lib/docker",
        "ServerVersion": machine.docker, "LiveRestoreEnabled": False, "DefaultRuntime": "runc",
        "Runtimes": {name: {"path": name} for name in runtimes},
        "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"],
    }  # fmt: skip
    if machine.docker >= "29":  # keeps its images in containerd's store
        info["Driver"] = "overlayfs"
        info["DriverStatus"] = [["driver-type", "io.containerd.snapshotter.v1"]]
        info["Containerd"] = {"Address": "/run/containerd/containerd.sock"}
    if machine.docker >= "28.2":  # CDI is on by default
        info["CDISpecDirs"] = ["/etc/cdi", "/var/run/cdi"]
    add("docker.info", [json.dumps(info)])
    add("containerd.config", rc=1)
    if machine.cdi and machine.ctk:
        names = []
        for index, card in enumerate(machine.cards):
            # nvidia-ctk names a GPU in MIG mode by its devices alone.
            names += [] if card.mig_devices else [str(index), UUID.format(index + 1)]
            names += [f"{index}:{mig}" for mig in range(len(card.mig_devices))]
            names += [MIG_UUID.format(mig) for mig in range(len(card.mig_devices))]
        spec = ["/var/run/cdi/nvidia.yaml", "cdiVersion: 0.5.0", "containerEdits:", "devices:"]
        for name in [*names, "all"]:
            quoted = f'"{name}"' if name.isdigit() else name
            spec += ["    - containerEdits:", f"      name: {quoted}"]
        add("cdi.spec", [*spec, "kind: nvidia.com/gpu"])
    for path in ("/var/lib/docker", "/var/lib/containerd"):
        add_space(machine, path, path)
    add("file", [UNIT])
    add("uname", [f"Linux {machine.kernel} {machine.arch}"])
    add("os-release", [
        f'PRETTY_NAME="Ubuntu {point} LTS"', 'NAME="Ubuntu"', f'VERSION_ID="{machine.ubuntu}"',
        f"VERSION_CODENAME={codename}", "ID=ubuntu", "ID_LIKE=debian",
    ])  # fmt: skip
    dgx = [f'DGX_OTA_VERSION="{machine.dgx}"'] if machine.dgx else []
    add("dgx-release", dgx, 0 if machine.dgx else 127)
    add("glibc", [f"glibc {glibc}"])
    add("boot-id", ["5f0c1d0e-7a27-4a0b-9a52-1f3a4b6c7d8e"])
    available = machine.memory_kb * 9 // 10
    add("meminfo", [f"MemTotal:       {machine.memory_kb} kB", f"MemAvailable:   {available} kB",
                    "SwapTotal:             0 kB"])  # fmt: skip
    add("user", ["0", "root"])
    add("http-client", ["curl"])
    add("selinux", rc=127)
    add("clock", rc=127)  # a recording is read at another time, and then a clock would be off
    add("platform")
    add("mounts", ["sysfs /sys sysfs rw,nosuid 0 0", "/dev/nvme0n1p2 / ext4 rw,relatime 0 0",
                   "tmpfs /run tmpfs rw,nosuid,nodev 0 0"])  # fmt: skip
    add("listeners.ss", [
        'LISTEN 0 4096 127.0.0.53%lo:53 0.0.0.0:* users:(("systemd-resolve",pid=812,fd=15))',
        'LISTEN 0 128 0.0.0.0:22 0.0.0.0:* users:(("sshd",pid=1011,fd=3))',
        'LISTEN 0 128 [::]:22 [::]:* users:(("sshd",pid=1011,fd=4))',
    ])  # fmt: skip
    add_nvidia(machine)
    for path, existing in SPACES.items():
        add_space(machine, path, existing)
    add("systemd.version", [f"systemd {systemd}", "+PAM +AUDIT +SELINUX +APPARMOR"])
    add("systemd.state", ["running"])
    fabric = machine.fabricmanager
    add("systemd.units", [
        "Id=nvidia-fabricmanager.service", f"LoadState={'loaded' if fabric else 'not-found'}",
        f"ActiveState={'active' if fabric else 'inactive'}", "",
        "Id=nvidia-persistenced.service", "LoadState=loaded", "ActiveState=active", "",
        "Id=nvidia-vgpu-mgr.service", "LoadState=not-found", "ActiveState=inactive",
    ])  # fmt: skip
    add("python", ["/usr/bin/python3", python, ""])
    add("ninja", rc=127)
    add("account", ["sglang"])  # asked for, and not there
    machine.lines.extend(["@ parts rc=0", " hundredths 84", "@ end"])
    sources = ", ".join(f"tests/recorded/nvidia-smi/{name}.txt" for name in machine.recorded)
    head = [f"# composed from {sources}", "# by tests/recorded/compose_surveys.py; not a real node",
            "sglang-survey 1 0.1.0"]  # fmt: skip
    return "\n".join([*head, *machine.lines]) + "\n"


def add_space(machine: Machine, path: str, existing: str) -> None:
    """Add the free space of a path."""
    size, free = 1_921_724_608, machine.free_kb
    machine.add("space", [
        path, existing, existing, "Filesystem     1024-blocks  Used Available Capacity Mounted on",
        f"/dev/nvme0n1p2  {size} {size - free} {free}      {100 - free * 100 // size}% /",
    ])  # fmt: skip


def add_nvidia(machine: Machine) -> None:
    """Add what nvidia-smi and the driver say."""
    add, driver = machine.add, machine.driver
    add("smi.path", ["/usr/bin/nvidia-smi"])
    if machine.failure:
        code, text = machine.failure
        for form in ("query", "table", "xml"):
            add(f"smi.{form}", text, code)
    else:
        rows = [row_of(index, card, driver) for index, card in enumerate(machine.cards)]
        add("smi.query", [", ".join(row[name] for name in QUERY) for row in rows])
        if any(card.mig_devices for card in machine.cards):
            add("smi.list", list(list_of(machine)))
        add("smi.xml", list(xml_of(machine)))
    kind = f"Open Kernel Module for {machine.arch}" if machine.open_module else (
        f"{machine.arch} Kernel Module"
    )  # fmt: skip
    add(
        "nvidia.module",
        [
            f"NVRM version: NVIDIA UNIX {kind}  {machine.module or driver}  "
            "Release Build  (dvs-builder@host)  Thu Jan  1 00:00:00 UTC 2026"
        ],
    )
    add("nvidia.modules", ["nvidia_uvm 2076672 0 - Live 0x0", "nvidia 14381056 42 - Live 0x0"])
    add("nvidia.pci", [f"{card.bus[4:].lower()} 0x030200 0x0000" for card in machine.cards])
    add("nvidia.devices", ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"])
    if machine.fabricmanager:
        add("nvidia.fabricmanager", [f"Fabric Manager version is : {driver}"])
        add("nvidia.nvlsm", ["/opt/nvidia/nvlsm/sbin/nvlsm"])
    else:
        add("nvidia.fabricmanager", rc=127)
        add("nvidia.nvlsm", rc=127)
    ctk = machine.ctk
    add("nvidia.ctk", [f"NVIDIA Container Toolkit CLI version {ctk}"] if ctk else "",
        0 if ctk else 127)  # fmt: skip
    add("nvidia.runtime-config", ["[nvidia-container-runtime]", 'mode = "auto"'] if ctk else "",
        0 if ctk else 127)  # fmt: skip


def row_of(index: int, card: Card, driver: str) -> dict[str, str]:
    """Return the cells of a GPU in the query."""
    unified = card.memory == "[N/A]"
    return {
        "index": str(index), "name": card.name, "uuid": UUID.format(index + 1),
        "driver_version": driver, "compute_cap": card.capability, "memory.total": card.memory,
        "memory.used": "[N/A]" if unified else "1 MiB", "mig.mode.current": card.mig,
        "mig.mode.pending": card.mig, "pci.bus_id": card.bus, "persistence_mode": "Enabled",
        "addressing_mode": card.addressing,
    }  # fmt: skip


def list_of(machine: Machine) -> list[str]:
    """Return what ``nvidia-smi -L`` prints."""
    lines = []
    for index, card in enumerate(machine.cards):
        lines.append(f"GPU {index}: {card.name} (UUID: {UUID.format(index + 1)})")
        for mig in range(len(card.mig_devices)):
            lines.append(f"  MIG 1g.5gb      Device  {mig}: (UUID: {MIG_UUID.format(mig)})")
    return lines


def xml_of(machine: Machine) -> list[str]:
    """Return the elements of ``nvidia-smi -q -x`` that a survey reads."""
    lines = ['<?xml version="1.0" ?>', '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">',
             "<nvidia_smi_log>", f"<driver_version>{machine.driver}</driver_version>",
             f"<cuda_version>{machine.cuda}</cuda_version>"]  # fmt: skip
    for index, card in enumerate(machine.cards):
        mig = card.mig.strip("[]")
        has_ecc = card.memory != "[N/A]"
        count, remap = ("0", "No") if has_ecc else ("N/A", "N/A")
        status = "Success" if card.fabric == "Completed" else card.fabric
        devices = "".join(
            f"<mig_device><index>{number}</index><gpu_instance_id>{instance}</gpu_instance_id>"
            "<compute_instance_id>0</compute_instance_id>"
            f"<fb_memory_usage><total>{memory}</total></fb_memory_usage></mig_device>"
            for number, (instance, memory) in enumerate(card.mig_devices)
        )
        lines += [
            f'<gpu id="{card.bus}">',
            f"<product_name>{card.name}</product_name>",
            f"<product_brand>{card.brand}</product_brand>",
            f"<uuid>{UUID.format(index + 1)}</uuid>",
            f"<pci><pci_bus_id>{card.bus}</pci_bus_id></pci>",
            f"<mig_mode><current_mig>{mig}</current_mig><pending_mig>{mig}</pending_mig></mig_mode>",
            f"<mig_devices>{devices or 'None'}</mig_devices>",
            "<gpu_virtualization_mode><virtualization_mode>None</virtualization_mode>"
            "</gpu_virtualization_mode>",
            f"<ecc_errors><volatile><sram_uncorrectable>{count}</sram_uncorrectable>"
            f"<dram_uncorrectable>{count}</dram_uncorrectable></volatile></ecc_errors>",
            f"<remapped_rows><remapped_row_pending>{remap}</remapped_row_pending>"
            f"<remapped_row_failure>{remap}</remapped_row_failure></remapped_rows>",
            *(
                ["<gpu_recovery_action>None</gpu_recovery_action>"]
                if machine.driver > "565"
                else []
            ),
            f"<fabric><state>{card.fabric}</state><status>{status}</status></fabric>",
            "<processes></processes>",
            "</gpu>",
        ]
    return [*lines, "</nvidia_smi_log>"]


def l4(bus: str) -> Card:
    return Card("NVIDIA L4", bus, "8.9", "23034 MiB")


def a100(bus: str, mig: str, devices: tuple[tuple[int, str], ...] = ()) -> Card:
    return Card("NVIDIA A100-PCIE-40GB", bus, "8.0", "40960 MiB", mig=mig, mig_devices=devices)


def b200(bus: str) -> Card:
    return Card("NVIDIA B200", bus, "10.0", "183359 MiB", mig="Disabled", fabric="Completed",
                addressing="HMM")  # fmt: skip


def machines() -> tuple[Machine, ...]:
    """Return the machines of the demonstration inventory."""
    mig = ((3, "9856 MiB"), (4, "9856 MiB"))
    gb10 = Card("NVIDIA GB10", "0000000F:01:00.0", "12.1", "[N/A]", addressing="ATS")
    t4 = Card("Tesla T4", "00000000:00:1E.0", "7.5", "15360 MiB")
    return (
        Machine("two-l4-no-toolkit", ("l4_x2_550",), "550.90.07", "12.4",
                (l4("00000000:00:03.0"), l4("00000000:00:04.0")), "22.04", "6.8.0-85-generic",
                "28.3.3", ctk=None),
        Machine("dgx-spark", ("gb10_query_decision",), "580.173.02", "13.0", (gb10,), "24.04",
                "6.17.0-1008-nvidia", "28.3.3", "1.18.1", arch="aarch64", memory_kb=127_600_748,
                dgx="7.5.0"),
        Machine("a100-mig", ("a100_mig_mixed_535",), "535.161.08", "12.2",
                (a100("00000000:21:00.0", "Enabled", mig), a100("00000000:81:00.0", "Disabled")),
                "22.04", "5.15.0-157-generic", "28.3.3", "1.17.8", open_module=False,
                memory_kb=528_163_704),
        Machine("b200-pair", ("b200_590_mig_na", "b200_x8_610"), "590.48.01", "13.1",
                (b200("00000000:1B:00.0"), b200("00000000:43:00.0")), "24.04", "6.8.0-85-generic",
                "29.1.2", "1.18.1", memory_kb=2_113_419_264, fabricmanager=True),
        Machine("t4", ("t4_x2_535",), "580.126.09", "13.0", (t4,), "22.04", "6.8.0-1043-aws",
                "28.3.3", "1.17.8", memory_kb=32_386_540),
        Machine("mismatch", ("fail_mismatch_580",), "580.178", "13.0", (l4("00000000:31:00.0"),),
                "24.04", "6.8.0-85-generic", "28.3.3", "1.18.1", module="580.173.02",
                failure=(18, recorded("fail_mismatch_580"))),
    )  # fmt: skip


if __name__ == "__main__":
    DEMO.mkdir(exist_ok=True)
    for each in machines():
        (DEMO / f"{each.name}.survey").write_text(compose(each))
