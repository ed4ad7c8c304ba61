"""What a survey says about a node: typed, frozen records.

Every value that a node may fail to give has the type ``T | Unknown``. An
``Unknown`` says why there is no value, and is never equal to a good one: what
depends on it refuses, or says what it assumes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from facts.door import NO_DOOR
from facts.door import DoorServer as DoorServer
from facts.door import DoorState as DoorState
from facts.door import DoorTls as DoorTls
from facts.unknown import ABSENT as ABSENT
from facts.unknown import UNSUPPORTED as UNSUPPORTED
from facts.unknown import Unknown as Unknown
from facts.unknown import Why as Why
from facts.unknown import known as known

SCHEMA = 1
"""Version of the survey's format: its first line carries it."""


@dataclass(frozen=True)
class Host:
    """The machine and its operating system."""

    architecture: str | Unknown = ABSENT  # "x86_64", "aarch64", as uname -m says
    kernel: str | Unknown = ABSENT
    os_id: str | Unknown = ABSENT  # ID of os-release: "ubuntu", "debian", "rhel"
    os_version: str | Unknown = ABSENT  # VERSION_ID: "24.04"
    os_name: str | Unknown = ABSENT  # PRETTY_NAME
    os_like: tuple[str, ...] = ()  # ID_LIKE
    dgx_version: str | Unknown = (
        ABSENT  # DGX_SWBUILD_VERSION or DGX_OTA_VERSION of /etc/dgx-release
    )
    glibc: str | Unknown = ABSENT  # "2.39"
    boot_id: str | Unknown = ABSENT
    wsl: bool = False
    tegra: bool = False
    l4t_major: int | Unknown = ABSENT
    vgpu_host: bool = False  # runs NVIDIA's vGPU manager
    memory_total_bytes: int | Unknown = ABSENT
    memory_available_bytes: int | Unknown = ABSENT
    memory_cached_bytes: int | Unknown = ABSENT  # page cache, of which available counts most
    swap_total_bytes: int | Unknown = ABSENT
    uid: int | Unknown = ABSENT  # of the user who ran the survey
    user: str | Unknown = ABSENT
    can_sudo: bool | Unknown = ABSENT  # sudo -n works without a password
    http_client: str | Unknown = ABSENT  # "curl", "python3" or "wget": what can ask over HTTP there
    selinux: str | Unknown = ABSENT  # "Enforcing", "Permissive", "Disabled"
    time_epoch: int | Unknown = ABSENT  # the node's clock, seconds


@dataclass(frozen=True)
class MigDevice:
    """One MIG device of a GPU."""

    index: int
    gpu_instance: int
    compute_instance: int
    uuid: str | Unknown = ABSENT
    memory_total_mib: int | Unknown = ABSENT


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    name: str
    memory_mib: int | Unknown


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi gives it (query form and -q -x together)."""

    index: int
    name: str
    uuid: str | Unknown = ABSENT
    compute_capability: str | Unknown = ABSENT  # "8.9"
    memory_total_mib: int | Unknown = ABSENT
    memory_used_mib: int | Unknown = ABSENT
    bus_id: str | Unknown = ABSENT
    brand: str | Unknown = ABSENT  # NVML's: "NVIDIA", "Tesla", "GeForce", "NVIDIA RTX", "Quadro"
    virtualization_mode: str | Unknown = ABSENT  # "None", "Pass-Through", "VGPU", "Host VGPU"
    license_status: str | Unknown = ABSENT  # of a vGPU guest
    mig_enabled: bool | Unknown = ABSENT
    mig_pending: bool | Unknown = ABSENT  # the mode that a reset will bring
    mig_devices: tuple[MigDevice, ...] = ()
    persistence: bool | Unknown = ABSENT
    addressing_mode: str | Unknown = ABSENT
    ecc_uncorrected: int | Unknown = ABSENT  # volatile, all kinds together
    remapped_pending: bool | Unknown = ABSENT
    remapped_failure: bool | Unknown = ABSENT
    recovery_action: str | Unknown = ABSENT  # "None", "Reset", "Reboot", "Drain and Reset", ...
    fabric_state: str | Unknown = ABSENT  # "Completed", "In Progress", "Not Started"
    fabric_status: str | Unknown = ABSENT  # "Success", ...
    fault: str | None = (
        None  # text that says the GPU is lost or broken: "ERR!", "[GPU requires reset]"
    )
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True)
class Smi:
    """How nvidia-smi ended."""

    exit_code: int | Unknown = ABSENT  # absent: no such program; unreadable: it never returned
    text: str = ""  # its output where it failed, else ""
    path: str | Unknown = ABSENT
    source: Literal["query", "xml", "table"] | None = None  # which form gave the list of GPUs


@dataclass(frozen=True)
class Nvidia:
    """Driver, kernel module and GPUs."""

    smi: Smi = Smi()
    driver_version: str | Unknown = ABSENT
    cuda_version: str | Unknown = ABSENT  # of nvidia-smi's header: decides nothing but under WSL
    smi_version: str | Unknown = ABSENT
    module_version: str | Unknown = ABSENT  # of /proc/driver/nvidia/version
    module_kind: Literal["open", "proprietary"] | Unknown = ABSENT
    gpus: tuple[Gpu, ...] = ()
    pci_devices: int | Unknown = ABSENT  # NVIDIA display/3D controllers that the PCI bus shows
    fabricmanager: str | Unknown = ABSENT  # ActiveState of nvidia-fabricmanager.service
    fabricmanager_version: str | Unknown = ABSENT
    persistenced: str | Unknown = ABSENT  # ActiveState of nvidia-persistenced.service
    nvlsm: bool | Unknown = ABSENT  # NVLink subnet manager is installed
    nvswitch: bool = False  # /dev/nvidia-nvswitch* is there
    rdma: bool = False  # /dev/infiniband/uverbs* is there: an adapter for RDMA
    nouveau: bool = False  # the nouveau module is loaded


@dataclass(frozen=True)
class CdiDevice:
    """A device as the node's CDI specifications list it: ``nvidia.com/gpu=0``."""

    name: str


@dataclass(frozen=True)
class LocalImage:
    """An image in Docker's store."""

    repository: str
    tag: str | None
    digest: str | None  # of the manifest it was pulled by: "sha256:..."
    config_digest: str  # Docker's image id: "sha256:..."


@dataclass(frozen=True)
class GpuContainer:
    """A running container that uses GPUs."""

    id: str
    name: str
    image: str
    mode: Literal["cdi", "runtime", "legacy", "devices"]


@dataclass(frozen=True)
class Docker:
    """The container engine."""

    client: str | Unknown = ABSENT  # path of the docker program
    client_version: str | Unknown = ABSENT
    server_version: str | Unknown = (
        ABSENT  # absent: no daemon; unreadable: no permission, no answer
    )
    snap: bool = False
    rootless: bool = False
    storage_driver: str | Unknown = ABSENT
    root_dir: str | Unknown = ABSENT  # where the store is: /var/lib/docker
    image_store_dir: str | Unknown = ABSENT  # with the containerd image store: containerd's root
    runtimes: tuple[str, ...] = ()
    cgroup_driver: str | Unknown = ABSENT
    cgroup_version: str | Unknown = ABSENT
    live_restore: bool | Unknown = ABSENT
    cdi_dirs: tuple[str, ...] = ()  # as the daemon reports them; () is CDI off
    cdi_devices: tuple[
        str, ...
    ] = ()  # "nvidia.com/gpu=0", from the specifications in those directories
    images: tuple[LocalImage, ...] = ()
    mirrors: tuple[str, ...] = ()  # of Docker Hub, as the daemon has them
    insecure: tuple[str, ...] = ()  # registries and networks that the daemon asks without TLS
    gpu_containers: tuple[GpuContainer, ...] | Unknown = ()  # of those that run
    containers: Mapping[str, str] = field(
        default_factory=dict
    )  # name -> state of our own (sglang-*)
    nvidia_ctk_version: str | Unknown = ABSENT
    nvidia_runtime_mode: str | Unknown = ABSENT  # mode of nvidia-container-runtime/config.toml
    podman_version: str | Unknown = ABSENT


@dataclass(frozen=True)
class Space:
    """A path that the toolkit writes to or reads, and the file system it is on."""

    path: str  # as asked
    exists: bool
    existing: str  # the nearest parent that exists
    mount: str | Unknown = ABSENT
    file_system: str | Unknown = ABSENT  # "ext4", "nfs4", "overlay"
    source: str | Unknown = ABSENT  # what is mounted: "/dev/sda1", "10.0.0.5:/models"
    free_bytes: int | Unknown = ABSENT
    read_only: bool | Unknown = ABSENT


@dataclass(frozen=True)
class HubFiles:
    """A hub model in the hub's cache on a node, by commit and by path within the commit."""

    marked: Mapping[str, Mapping[str, tuple[int, int, str]]] = field(default_factory=dict)
    """What was found good: bytes, time of change (seconds of Unix time), checksum."""
    there: Mapping[str, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    """What is there now: bytes, time of change."""
    parts: Mapping[str, int] = field(default_factory=dict)  # checksum -> bytes that have come


@dataclass(frozen=True)
class ModelFiles:
    """A model on the node: what says how much memory it takes, without reading its weights."""

    path: str  # as asked: a directory, or a GGUF file
    exists: bool | Unknown
    config: str | Unknown = ABSENT  # text of its config.json
    index_bytes: int | Unknown = ABSENT  # of all weights, as their index says
    sizes: Mapping[str, int] | Unknown = ABSENT  # bytes of each file of weights, by its name
    mistral_form: bool = False  # params.json is there: Mistral's own form


@dataclass(frozen=True)
class Listener:
    """A TCP socket that listens."""

    address: str  # "127.0.0.1", "0.0.0.0", "::"
    port: int
    pid: int | Unknown
    process: str | Unknown


@dataclass(frozen=True)
class ManagedFile:
    """A file that the toolkit wrote, or whose place it would write to."""

    path: str
    exists: bool
    sha256: str | Unknown = ABSENT
    mode: str | Unknown = ABSENT  # "0644"
    owner: str | Unknown = ABSENT  # "root:root"
    text: str | Unknown = ABSENT  # of files without secrets, for a diff; else absent
    link: str | Unknown = ABSENT  # where a symbolic link leads, as it is written


@dataclass(frozen=True)
class Answer:
    """What a running service said when the survey asked it."""

    ready: int | Unknown  # HTTP status of its ready endpoint
    model_names: tuple[str, ...] | Unknown  # ids at /v1/models


@dataclass(frozen=True)
class ServiceState:
    """One ``sglang@NAME.service`` on the node."""

    name: str
    load_state: str | Unknown = ABSENT
    active_state: str | Unknown = ABSENT  # "active", "activating", "failed", "inactive"
    sub_state: str | Unknown = ABSENT
    result: str | Unknown = ABSENT  # "success", "exit-code", "timeout", "start-limit-hit"
    unit_file_state: str | Unknown = ABSENT  # "enabled", "disabled", "masked"
    main_pid: int | Unknown = ABSENT
    restarts: int | Unknown = ABSENT  # NRestarts
    invocation_id: str | Unknown = ABSENT
    state_since: str | Unknown = ABSENT  # when its state last changed
    status_text: str | Unknown = ABSENT
    need_daemon_reload: bool | Unknown = ABSENT
    exec_main_status: int | Unknown = ABSENT
    last_lines: tuple[str, ...] | Unknown = ABSENT  # how it ended; only where it does not run well
    fragment_path: str | Unknown = ABSENT
    drop_ins: tuple[str, ...] = ()
    drop_in_keys: Mapping[str, tuple[str, ...] | Unknown] = field(
        default_factory=dict
    )  # path of a drop-in that is not ours -> what it sets: "Service.KillMode", never a value
    start_began: int | Unknown = ABSENT  # when systemd last started it: microseconds since boot
    active_began: int | Unknown = ABSENT  # when it last became active: microseconds since boot
    main_began: int | Unknown = ABSENT  # its main process: hundredths of a second since boot
    main_deployment: int | Unknown = ABSENT  # of its environment: what it was started from
    current: int | Unknown = ABSENT  # number of the deployment that `current` points to
    previous: int | Unknown = ABSENT
    deployments: tuple[int, ...] = ()
    written: Mapping[str, int] = field(
        default_factory=dict
    )  # "7/plan.json", "7/record.json", "7/start.json" -> when, seconds of Unix time
    launch: Mapping[str, str] = field(default_factory=dict)  # launch.env of the current deployment
    record: str | Unknown = ABSENT  # text of record.json of the current deployment
    plan: str | Unknown = ABSENT  # text of plan.json of the current deployment
    answer: Answer | Unknown = ABSENT
    container_image: str | Unknown = ABSENT  # image id that the running container uses
    container_started: str | Unknown = ABSENT
    container_began: int | Unknown = ABSENT  # its process: hundredths of a second since boot
    container_deployment: int | Unknown = ABSENT  # of our label: the deployment it was started from


@dataclass(frozen=True)
class Program:
    """A program that the wheel runtime may use: a Python, a compiler, an nvcc."""

    path: str
    version: str | Unknown
    detail: str | Unknown = ABSENT  # Python: where Python.h is; CUDA_HOME: what is missing in it


@dataclass(frozen=True)
class Toolchain:
    """What the wheel runtime would find."""

    pythons: tuple[Program, ...] = ()
    compilers: tuple[Program, ...] = ()
    nvccs: tuple[Program, ...] = ()
    cuda_homes: tuple[Program, ...] = ()
    ninja: str | Unknown = ABSENT
    libcuda: str | Unknown = ABSENT  # libcuda.so.1 as ldconfig knows it: the driver's
    libcuda_link: str | Unknown = ABSENT  # libcuda.so: what `-lcuda` links with
    libnuma: str | Unknown = ABSENT  # libnuma.so.1
    package_manager: str | Unknown = ABSENT  # path of apt-get or dnf
    tools: tuple[str, ...] | Unknown = ABSENT  # programs that the toolkit brought: paths


@dataclass(frozen=True)
class Environment:
    """An environment of Python packages: one directory, whole or half-made."""

    path: str
    mark: str | Unknown = ABSENT  # text of its mark, which is written last; absent: half-made
    site_packages: str | Unknown = ABSENT  # within it: "lib/python3.12/site-packages"
    parts: tuple[str, ...] = ()  # of those that matter, what is there: "bin/python3", "cu13/lib64"
    missing: tuple[str, ...] | Unknown = (
        ABSENT  # parts that its mark says it has, and are not there
    )
    changed: tuple[str, ...] | Unknown = ABSENT  # what is other than at its mark: "+ x-2.dist-info"


@dataclass(frozen=True)
class Account:
    """A user of the node."""

    name: str
    exists: bool | Unknown
    uid: int | Unknown = ABSENT
    gid: int | Unknown = ABSENT
    home: str | Unknown = ABSENT
    shell: str | Unknown = ABSENT


@dataclass(frozen=True)
class Survey:
    """Everything read from a node, in one round trip."""

    node: str
    schema: int = SCHEMA
    version: str = ""  # of the toolkit whose program ran
    seconds: float | Unknown = ABSENT  # how long it took on the node
    unfinished: tuple[str, ...] = ()  # parts that did not return before the deadline
    host: Host = Host()
    systemd_version: int | Unknown = ABSENT
    systemd_state: str | Unknown = ABSENT  # "running", "degraded", "offline"
    nvidia: Nvidia = Nvidia()
    docker: Docker = Docker()
    spaces: Mapping[str, Space] = field(default_factory=dict)
    listeners: tuple[Listener, ...] | Unknown = ABSENT
    services: Mapping[str, ServiceState] = field(default_factory=dict)
    files: Mapping[str, ManagedFile] = field(default_factory=dict)
    weights: Mapping[str, HubFiles] = field(default_factory=dict)  # "HF_HOME:models--A--B"
    toolchain: Toolchain = Toolchain()
    models: Mapping[str, ModelFiles] = field(default_factory=dict)
    environments: Mapping[str, Environment] = field(default_factory=dict)  # by name of directory
    environments_unread: Unknown | None = None  # why they could not be looked at
    accounts: Mapping[str, Account] = field(default_factory=dict)
    door: DoorState = NO_DOOR

    def to_json(self) -> dict[str, object]:
        """Return the survey as plain data; pyinfra's own ``fact`` command asks for it by name."""
        return asdict(self)
