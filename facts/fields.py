"""The one table of the survey's fields: where each is read from, and what counts as a value.

What is not a value becomes an ``Unknown``, by these rules, for every field alike:

- nothing there, or an empty cell: ``absent``;
- a word that says the device or version has no such value (``[N/A]``): ``unsupported``;
- a word that says that it could not be read now (``ERR!``): ``unreadable``;
- anything that is not of the field's form: ``malformed``, with the text that was seen.

A field of kind ``records`` holds several values and is empty where nothing was found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from facts.door import DOOR_RECORDS, EXAMPLES, WORD
from facts.records import ABSENT, Unknown

Kind = Literal["text", "number", "flag", "records"]

NVIDIA_UNSUPPORTED = frozenset(
    {"[N/A]", "N/A", "[Not Supported]", "Not Supported", "[Requested functionality has been "
     "deprecated]", "Requested functionality has been deprecated"}
)  # fmt: skip
NVIDIA_ABSENT = frozenset({"[Not Found]", "Not Found"})
"""Seen as CUDA version on hosts of NVIDIA's vGPU manager, which have no libcuda."""
NVIDIA_UNREADABLE = frozenset(
    {"ERR!", "[Unknown Error]", "Unknown Error", "[Insufficient Permissions]",
     "Insufficient Permissions", "[GPU requires reset]", "GPU requires reset", "[GPU is lost]",
     "GPU is lost", "[Reset Required]"}
)  # fmt: skip
FAULTS = frozenset(
    {"ERR!", "[Unknown Error]", "Unknown Error", "[GPU requires reset]", "GPU requires reset",
     "[GPU is lost]", "GPU is lost", "[Reset Required]"}
)  # fmt: skip
"""Cells that say the GPU itself is lost or broken, whatever field they stand in."""

_NVIDIA_RECORDS = {"Gpu", "MigDevice", "GpuProcess", "Nvidia"}
_ON_OFF: Mapping[str, bool] = {"Enabled": True, "Disabled": False, "On": True, "Off": False}
_YES_NO: Mapping[str, bool] = {"Yes": True, "No": False, "yes": True, "no": False}
_JSON: Mapping[str, bool] = {"true": True, "false": False}
_DEFAULT_PATTERN: Mapping[Kind, str] = {
    "text": r"[^\n]+",
    "number": r"\d{1,18}",
    "flag": r".+",
    "records": r"(?s:.*)",
}
VERSION = r"\d+(?:\.\d+){1,3}"


@dataclass(frozen=True)
class Field:
    """One row: a record's field, its source, the form of a value, and an example of it."""

    key: str  # "Gpu.memory_total_mib"
    kind: Kind
    source: str
    example: tuple[str, str | int | bool] | None = None  # as printed, and as read
    pattern: str = ""  # of the whole text; its first group, if any, is the value
    words: Mapping[str, bool] = field(default_factory=dict)
    times: int = 1  # a number's unit: 1024 where kB are printed

    @cached_property
    def form(self) -> re.Pattern[str]:
        """The compiled pattern of a value."""
        return re.compile(self.pattern or _DEFAULT_PATTERN[self.kind], re.ASCII)


def _text(
    key: str, source: str, example: str, value: str | None = None, pattern: str = ""
) -> Field:
    return Field(key, "text", source, (example, example if value is None else value), pattern)


def _number(
    key: str, source: str, example: str, value: int, pattern: str = "", times: int = 1
) -> Field:
    return Field(key, "number", source, (example, value), pattern, times=times)


def _flag(key: str, source: str, words: Mapping[str, bool]) -> Field:
    return Field(key, "flag", source, next(iter(words.items())), words=words)


def _records(key: str, source: str) -> Field:
    return Field(key, "records", source)


_MIB = r"(\d{1,12})(?: ?MiB)?"
_KIB = r"\w+:\s+(\d{1,15}) kB"
_BUS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]"
_SHOW = "services.show (systemctl show)"
_DEPLOYMENT = r"(?:.*/)?(\d{1,9})"

_ROWS = (
    # -- the machine
    _text("Host.architecture", "uname, last word", "x86_64", pattern=r"[a-z0-9_]+"),
    _text("Host.kernel", "uname, second word", "6.8.0-85-generic", pattern=r"\S+"),
    _text("Host.os_id", "os-release ID", "ubuntu", pattern=r"[A-Za-z0-9._-]+"),
    _text("Host.os_version", "os-release VERSION_ID", "24.04", pattern=r"\S+"),
    _text("Host.os_name", "os-release PRETTY_NAME", "Ubuntu 24.04.3 LTS"),
    _records("Host.os_like", "os-release ID_LIKE"),
    _text("Host.dgx_version", "dgx-release DGX_OTA_VERSION, else DGX_SWBUILD_VERSION", "7.2.3"),
    _text("Host.glibc", "getconf GNU_LIBC_VERSION, else ldd --version", "glibc 2.39", "2.39",
          r"(?:.*\s)?(\d+\.\d+)"),
    _text("Host.boot_id", "/proc/sys/kernel/random/boot_id",
          "5f0c1d0e-7a27-4a0b-9a52-1f3a4b6c7d8e", pattern=r"[0-9a-f-]{36}"),
    _records("Host.wsl", "/dev/dxg, and microsoft in the kernel's release"),
    _records("Host.tegra", "/etc/nv_tegra_release, and the device tree's compatible"),
    _number("Host.l4t_major", "/etc/nv_tegra_release", "# R38 (release), REVISION: 4.0", 38,
            r"#\s*R(\d{1,4})\b.*"),
    _records("Host.vgpu_host", "nvidia_vgpu_vfio module, /dev/nvidia-vgpu*, nvidia-vgpu-mgr"),
    _number("Host.memory_total_bytes", "/proc/meminfo, kB", "MemTotal:  32768 kB", 33554432, _KIB, 1024),
    _number("Host.memory_available_bytes", "/proc/meminfo, kB", "MemAvailable: 1 kB", 1024, _KIB, 1024),
    _number("Host.memory_cached_bytes", "/proc/meminfo, kB", "Cached: 2 kB", 2048, _KIB, 1024),
    _number("Host.swap_total_bytes", "/proc/meminfo, kB", "SwapTotal: 0 kB", 0, _KIB, 1024),
    _number("Host.uid", "id -u", "0", 0),
    _text("Host.user", "id -un", "root", pattern=r"\S+"),
    _records("Host.can_sudo", "sudo -n true; root needs none"),
    _text("Host.http_client", "command -v", "curl", pattern=r"curl|python3|wget"),
    _text("Host.selinux", "getenforce", "Enforcing", pattern=r"[A-Z][a-z]+"),
    _number("Host.time_epoch", "date +%s", "1790000000", 1790000000),
    # -- GPUs
    _number("Gpu.index", "query index; table; xml order", "0", 0),
    _text("Gpu.name", "query name; xml product_name; table", "NVIDIA L4"),
    _text("Gpu.uuid", "query uuid; xml uuid", "GPU-6b1f", pattern=r"(?:GPU|MIG)-\S+"),
    _text("Gpu.compute_capability", "query compute_cap", "8.9", pattern=r"\d+\.\d+"),
    _number("Gpu.memory_total_mib", "query memory.total; xml; table", "23034 MiB", 23034, _MIB),
    _number("Gpu.memory_used_mib", "query memory.used; xml; table", "1 MiB", 1, _MIB),
    _text("Gpu.bus_id", "query pci.bus_id; xml; table", "00000000:C9:00.0", pattern=_BUS),
    _text("Gpu.brand", "xml product_brand", "NVIDIA RTX"),
    _text("Gpu.virtualization_mode", "xml virtualization_mode", "Pass-Through"),
    _text("Gpu.license_status", "xml vgpu_software_licensed_product", "Licensed (Expiry: N/A)"),
    _flag("Gpu.mig_enabled", "query mig.mode.current; xml; table", _ON_OFF),
    _flag("Gpu.mig_pending", "query mig.mode.pending; xml; table", _ON_OFF),
    _records("Gpu.mig_devices", "xml mig_devices; table"),
    _flag("Gpu.persistence", "query persistence_mode; xml; table", _ON_OFF),
    _text("Gpu.addressing_mode", "query addressing_mode; xml", "ATS", pattern=r"[\w -]+"),
    _number("Gpu.ecc_uncorrected", "xml ecc_errors/volatile, uncorrectable ones together", "0", 0),
    _flag("Gpu.remapped_pending", "xml remapped_rows", _YES_NO),
    _flag("Gpu.remapped_failure", "xml remapped_rows", _YES_NO),
    _text("Gpu.recovery_action", "xml gpu_recovery_action", "None"),
    _text("Gpu.fabric_state", "xml fabric/state", "Completed"),
    _text("Gpu.fabric_status", "xml fabric/status", "Success"),
    _records("Gpu.fault", "a cell of any form that says the GPU is lost or broken"),
    _records("Gpu.processes", "xml processes"),
    _number("MigDevice.index", "xml; table", "0", 0),
    _number("MigDevice.gpu_instance", "xml; table", "3", 3),
    _number("MigDevice.compute_instance", "xml; table", "0", 0),
    _text("MigDevice.uuid", "xml uuid, else smi.list", "MIG-11", pattern=r"MIG-\S+"),
    _number("MigDevice.memory_total_mib", "xml fb_memory_usage; table", "9856 MiB", 9856, _MIB),
    _number("GpuProcess.pid", "xml", "1234", 1234),
    _text("GpuProcess.name", "xml process_name", "python3"),
    _number("GpuProcess.memory_mib", "xml used_memory", "512 MiB", 512, _MIB),
    # -- driver
    _number("Smi.exit_code", "of the query", "0", 0),
    _records("Smi.text", "output of the form that failed"),
    _text("Smi.path", "command -v nvidia-smi", "/usr/bin/nvidia-smi", pattern=r"/.+"),
    _records("Smi.source", "query, else xml, else table"),
    _records("Nvidia.smi", "smi.* sections"),
    _text("Nvidia.driver_version", "query driver_version; xml; table", "580.126.09",
          pattern=VERSION),
    _text("Nvidia.cuda_version", "xml cuda_version; table", "13.0", pattern=r"\d+\.\d+"),
    _text("Nvidia.smi_version", "table", "575.57.04", pattern=VERSION),
    _text("Nvidia.module_version", "/proc/driver/nvidia/version",
          "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.173.02  Thu Jan", "580.173.02",
          rf"NVRM version:.*?Kernel Module(?: for \S+)?\s+({VERSION})\b.*"),
    _records("Nvidia.module_kind", "/proc/driver/nvidia/version: \"Open Kernel Module\" or not"),
    _records("Nvidia.gpus", "smi.query, smi.query-short, smi.xml, smi.table"),
    _number("Nvidia.pci_devices", "/sys/bus/pci, vendor 0x10de, class 0x03", "2", 2),
    _text("Nvidia.fabricmanager", "systemd.units ActiveState", "active", pattern=r"[a-z-]+"),
    _text("Nvidia.fabricmanager_version", "nv-fabricmanager --version",
          "Fabric Manager version is : 580.126.20", "580.126.20", rf".*?({VERSION})\b.*"),
    _text("Nvidia.persistenced", "systemd.units ActiveState", "active", pattern=r"[a-z-]+"),
    _records("Nvidia.nvlsm", "command -v nvlsm"), _records("Nvidia.nouveau", "/proc/modules"),
    _records("Nvidia.nvswitch", "/dev/nvidia-nvswitch*"),
    _records("Nvidia.rdma", "/dev/infiniband/uverbs*"),
    # -- containers
    _text("CdiDevice.name", "cdi.spec kind and name", "nvidia.com/gpu=0", pattern=r"\S+/\S+=\S+"),
    _text("LocalImage.repository", "docker.images Repository", "lmsysorg/sglang"),
    _text("LocalImage.tag", "docker.images Tag", "v0.5.22"),
    _text("LocalImage.digest", "docker.images Digest", "sha256:" + "0" * 64,
          pattern=r"sha256:[0-9a-f]{64}"),
    _text("LocalImage.config_digest", "docker.images ID", "sha256:" + "0" * 64,
          pattern=r"sha256:[0-9a-f]{64}"),
    _text("GpuContainer.id", "docker.containers id", "0" * 64, pattern=r"[0-9a-f]{64}"),
    _text("GpuContainer.name", "docker.containers name", "/sglang-chat", "sglang-chat",
          r"/?([A-Za-z0-9][\w.-]*)"),
    _text("GpuContainer.image", "docker.containers image_name", "lmsysorg/sglang:v0.5.22"),
    _records("GpuContainer.mode", "docker.containers requests, runtime, devices"),
    _text("Docker.client", "docker.path", "/usr/bin/docker", pattern=r"/.+"),
    _text("Docker.client_version", "docker.version Client.Version", "28.3.3", pattern=r"\d\S*"),
    _text("Docker.server_version", "docker.version Server.Version, else docker.info", "28.3.3",
          pattern=r"\d\S*"),
    _records("Docker.snap", "docker.path under /snap"),
    _records("Docker.rootless", "docker.info SecurityOptions name=rootless"),
    _text("Docker.storage_driver", "docker.info Driver", "overlay2", pattern=r"\S+"),
    _text("Docker.root_dir", "docker.info DockerRootDir", "/var/lib/docker", pattern=r"/.*"),
    _text("Docker.image_store_dir", "containerd's root where docker.info DriverStatus names its "
          "snapshotter", "/var/lib/containerd", pattern=r"/.*"),
    _records("Docker.runtimes", "docker.info Runtimes"),
    _text("Docker.cgroup_driver", "docker.info CgroupDriver", "systemd", pattern=r"\S+"),
    _text("Docker.cgroup_version", "docker.info CgroupVersion", "2", pattern=r"\S+"),
    _flag("Docker.live_restore", "docker.info LiveRestoreEnabled", _JSON),
    _records("Docker.cdi_dirs", "docker.info CDISpecDirs"),
    _records("Docker.cdi_devices", "cdi.spec, docker.info DiscoveredDevices"),
    _records("Docker.images", "docker.images"),
    _records("Docker.mirrors", "docker.info RegistryConfig.Mirrors"),
    _records("Docker.insecure", "docker.info RegistryConfig: InsecureRegistryCIDRs, IndexConfigs"),
    _records("Docker.gpu_containers", "docker.containers"),
    _records("Docker.containers", "docker.containers state"),
    _text("Docker.nvidia_ctk_version", "nvidia-ctk --version",
          "NVIDIA Container Toolkit CLI version 1.17.8", "1.17.8", r".*?(\d+\.\d+\.\d+)\b.*"),
    _text("Docker.nvidia_runtime_mode", "nvidia-container-runtime/config.toml mode", "auto",
          pattern=r"[a-z-]+"),
    _text("Docker.podman_version", "podman --version", "podman version 4.9.3", "4.9.3",
          r".*?(\d+\.\d+\S*).*"),
    # -- paths, files, network
    _text("Space.path", "space, as asked", "/var/lib/sglang/hub", pattern=r"/.*"),
    _records("Space.exists", "space"),
    _text("Space.existing", "space, nearest parent that exists", "/var/lib", pattern=r"/.*"),
    _text("Space.mount", "/proc/mounts, longest match", "/var", pattern=r"/.*"),
    _text("Space.file_system", "/proc/mounts", "ext4", pattern=r"\S+"),
    _text("Space.source", "/proc/mounts", "/dev/sda1", pattern=r"[\w/:.,@#=\[\]()$%&'\\+~ -]+"),
    _number("Space.free_bytes", "df -Pk, kB available", "1", 1024, r"(\d{1,15})", 1024),
    _flag("Space.read_only", "/proc/mounts options", {"ro": True, "rw": False}),
    _records("HubFiles.marked", "weights"),
    _records("HubFiles.there", "weights"),
    _records("HubFiles.parts", "weights"),
    _text("ModelFiles.path", "model, as asked", "/srv/models/x", pattern=r"/.*"),
    _records("ModelFiles.exists", "model"),
    _records("ModelFiles.config", "model.config, text of config.json"),
    _number("ModelFiles.index_bytes", "model, metadata.total_size of the index",
            "index 16060522496", 16060522496, r"index (\d{1,18})"),
    _records("ModelFiles.sizes", "model, bytes of *.safetensors, *.bin, *.gguf, *.pt, *.pth"),
    _records("ModelFiles.mistral_form", "model, params.json"),
    _text("Listener.address", "ss -ltnp, else /proc/net/tcp and tcp6", "127.0.0.1"),
    _number("Listener.port", "ss -ltnp, else /proc/net/tcp and tcp6", "30000", 30000),
    _number("Listener.pid", "ss -ltnp, of those the user may see", "1234", 1234),
    _text("Listener.process", "ss -ltnp, of those the user may see", "python3"),
    _text("ManagedFile.path", "file, as asked", "/etc/x", pattern=r"/.*"),
    _records("ManagedFile.exists", "file"),
    _text("ManagedFile.sha256", "file, of regular files", "0" * 64, pattern=r"[0-9a-f]{64}"),
    _text("ManagedFile.mode", "file, octal", "0644", pattern=r"[0-7]{3,4}"),
    _text("ManagedFile.owner", "file", "root:root", pattern=r"\S+:\S+"),
    _text("ManagedFile.link", "file, its line that begins with ->", "server.yaml", pattern=r"\S+"),
    _records("ManagedFile.text", "text, of files named for it; checked against sha256"),
    # -- services
    _number("Answer.ready", "answer.ready, HTTP status", "200", 200, r"[1-5]\d\d"),
    _records("Answer.model_names", "answer.models, data[].id"),
    _text("ServiceState.name", "the unit's instance", "chat", pattern=r"[A-Za-z0-9][\w.-]*"),
    _text("ServiceState.load_state", _SHOW, "loaded", pattern=r"[a-z-]+"),
    _text("ServiceState.active_state", _SHOW, "active", pattern=r"[a-z-]+"),
    _text("ServiceState.sub_state", _SHOW, "running", pattern=r"[a-z-]+"),
    _text("ServiceState.result", _SHOW, "success", pattern=r"[a-z-]+"),
    _text("ServiceState.unit_file_state", _SHOW, "enabled", pattern=r"[a-z-]+"),
    _number("ServiceState.main_pid", _SHOW, "4242", 4242),
    _number("ServiceState.restarts", _SHOW + " NRestarts", "0", 0),
    _text("ServiceState.invocation_id", _SHOW, "0" * 32, pattern=r"[0-9a-f]{32}"),
    _text("ServiceState.state_since", _SHOW, "Mon 2026-11-30 03:49:00 UTC"),
    _text("ServiceState.status_text", _SHOW, "Ready."),
    _flag("ServiceState.need_daemon_reload", _SHOW, _YES_NO),
    _number("ServiceState.exec_main_status", _SHOW, "143", 143),
    _records("ServiceState.last_lines", "last.lines, of its journal and the kernel's log"),
    _text("ServiceState.fragment_path", _SHOW, "/etc/systemd/system/sglang@.service",
          pattern=r"/.*"),
    _records("ServiceState.drop_ins", _SHOW),
    _records("ServiceState.drop_in_keys", "dropin.keys"),
    _number("ServiceState.active_began", _SHOW + " ActiveEnterTimestampMonotonic", "73000000",
            73000000),
    _number("ServiceState.start_began", _SHOW + " ExecMainStartTimestampMonotonic", "72000000",
            72000000),
    _number("ServiceState.main_began", "main.began, /proc/PID/stat", "7200", 7200),
    _number("ServiceState.current", "deployment, the link's last word", "7", 7, _DEPLOYMENT),
    _number("ServiceState.previous", "deployment", "6", 6, _DEPLOYMENT),
    _records("ServiceState.deployments", "deployment"),
    _records("ServiceState.written", "deployment, times of plan.json, record.json and start.json"),
    _records("ServiceState.launch", "text of launch.env of the current deployment"),
    _records("ServiceState.record", "text of record.json of the current deployment"),
    _records("ServiceState.plan", "text of plan.json of the current deployment"),
    _records("ServiceState.answer", "answer.ready, answer.models; only of active services"),
    _text("ServiceState.container_image", "docker.containers image", "sha256:" + "0" * 64,
          pattern=r"sha256:[0-9a-f]{64}"),
    _text("ServiceState.container_started", "docker.containers started",
          "2026-11-30T03:49:00.1Z"),
    _number("ServiceState.main_deployment", "main.deployment, of its environment", "7", 7),
    _number("ServiceState.container_began", "container.began, /proc/PID/stat", "7300", 7300),
    _number("ServiceState.container_deployment", "docker.containers label sglang.deployment", "7",
            7, r"\d{1,9}"),
    # -- toolchain
    _text("Program.path", "python, compiler, nvcc, cuda-home", "/usr/bin/g++", pattern=r"/.*"),
    _text("Program.version", "python, compiler, nvcc, cuda-home", "g++ (Ubuntu 13.3.0) 13.3.0",
          "13.3.0", r".*?(\d+(?:\.\d+)+)\S*"),
    _text("Program.detail", "python, cuda-home", "/usr/include/python3.12"),
    _records("Toolchain.pythons", "python"),
    _records("Toolchain.compilers", "compiler"),
    _records("Toolchain.nvccs", "nvcc"),
    _records("Toolchain.cuda_homes", "cuda-home"),
    _text("Toolchain.ninja", "ninja --version", "1.11.1", pattern=r"\d+\.\d+\S*"),
    _text("Toolchain.libcuda", "libraries, ldconfig -p", "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
          pattern=r"/.*"),
    _text("Toolchain.libcuda_link", "libraries, ldconfig -p",
          "/usr/lib/x86_64-linux-gnu/libcuda.so", pattern=r"/.*"),
    _text("Toolchain.libnuma", "libraries, ldconfig -p", "/lib/x86_64-linux-gnu/libnuma.so.1",
          pattern=r"/.*"),
    _text("Toolchain.package_manager", "package-manager", "/usr/bin/apt-get", pattern=r"/.*"),
    _records("Toolchain.tools", "tools"),
    # -- environments
    _text("Environment.path", "environment", "/opt/sglang/environments/0123456789abcdef",
          pattern=r"/.*"),
    _records("Environment.mark", "environment, mark; JSON"),
    _text("Environment.site_packages", "environment, site", "lib/python3.12/site-packages",
          pattern=r"lib/python3\.\d+/site-packages"),
    _records("Environment.parts", "environment, part and cuda"),
    _records("Environment.missing", "environment, against the parts of its mark"),
    _records("Environment.changed", "environment, more, less and time, against its mark"),
    _text("Account.name", "account, as asked", "sglang", pattern=r"[a-z_][a-z0-9_-]*"),
    _records("Account.exists", "account, getent"),
    _number("Account.uid", "account, getent", "999", 999),
    _number("Account.gid", "account, getent", "999", 999),
    _text("Account.home", "account, getent", "/var/lib/sglang/home", pattern=r"/.*"),
    _text("Account.shell", "account, getent", "/usr/sbin/nologin", pattern=r"/.*"),
    # -- the survey itself
    _text("Survey.node", "the inventory", "gpu-1"),
    *(_records(f"Survey.{name}", "first line") for name in ("schema", "version")),
    _records("Survey.seconds", "parts"),
    _records("Survey.door", "the part door"),
    *(_text(f"Door{name}", "door", text, pattern=WORD) for name, text in EXAMPLES.items()),
    *(_records(f"Door{key}", "door") for key in DOOR_RECORDS),
    _records("Survey.unfinished", "parts, and sections that a time limit ended"),
    _records("Survey.host", "the part host"),
    _number("Survey.systemd_version", "systemctl show Version, systemctl --version",
            "Version=255.4-1ubuntu8.10", 255, r"(?:systemd |Version=v?)(\d{1,6})\b.*"),
    _text("Survey.systemd_state", "systemctl is-system-running", "degraded", pattern=r"[a-z-]+"),
    _records("Survey.nvidia", "the parts nvidia, nvidia-smi-query, nvidia-smi-xml"),
    _records("Survey.docker", "the parts docker, docker-images, docker-containers"),
    _records("Survey.spaces", "space"),
    _records("Survey.models", "model, model.config"),
    _records("Survey.listeners", "the part network"),
    _records("Survey.services", "the part services"),
    _records("Survey.files", "file, text"),
    _records("Survey.weights", "weights"),
    _records("Survey.toolchain", "the parts toolchain and environments"),
    _records("Survey.environments", "environment"),
    _records("Survey.environments_unread", "environments.closed, environment"),
    _records("Survey.accounts", "account"),
)  # fmt: skip

FIELDS: Mapping[str, Field] = {row.key: row for row in _ROWS}

Raw = str | Unknown | None


def _clean(key: str, raw: Raw) -> str | Unknown:
    """Return the part of ``raw`` that is the value of the field, or why it is none."""
    if raw is None:
        return ABSENT
    if isinstance(raw, Unknown):
        return raw
    seen = raw.strip()
    if not seen:
        return ABSENT
    row = FIELDS[key]
    if key.split(".", 1)[0] in _NVIDIA_RECORDS:
        if seen in NVIDIA_UNSUPPORTED:
            return Unknown("unsupported", seen)
        if seen in NVIDIA_UNREADABLE:
            return Unknown("unreadable", seen)
        if seen in NVIDIA_ABSENT:
            return Unknown("absent", seen)
    found = row.form.fullmatch(seen)
    if found is None or (row.words and seen not in row.words):
        return Unknown("malformed", seen[:200])
    return found[1] if found.re.groups else found[0]


def text(key: str, raw: Raw) -> str | Unknown:
    """Return the field ``key`` as text."""
    return _clean(key, raw)


def number(key: str, raw: Raw) -> int | Unknown:
    """Return the field ``key`` as a whole number, in the unit of its record."""
    value = _clean(key, raw)
    if isinstance(value, Unknown):
        return value
    if not value.isascii() or not value.isdigit():
        return Unknown("malformed", value[:200])
    return int(value) * FIELDS[key].times


def flag(key: str, raw: Raw) -> bool | Unknown:
    """Return the field ``key`` as true or false."""
    value = _clean(key, raw)
    return value if isinstance(value, Unknown) else FIELDS[key].words[value]
