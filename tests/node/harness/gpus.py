"""GPUs that are not there: a recorded nvidia-smi, a driver version, and a real CDI specification.

Nothing else is played. Docker itself resolves the CDI devices; what they add to a container is an
environment variable, `PLAYED_GPU`, where a real specification adds device files and libraries.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from .cache import HarnessError, make_once, run
from .machine import Node

RECORDINGS = Path(__file__).resolve().parents[2] / "recorded" / "played"
SMI = Path(__file__).with_name("nvidia-smi")
PLAYED = "/usr/local/lib/played"

# Run by Python before anything else in a container: a libcuda.so.1 that only fails.
LIBCUDA = """\
import ctypes

real = ctypes.CDLL


class Cuda:
    def cuInit(self, flags):
        return {number}

    def cuDriverGetVersion(self, version):
        version._obj.value = 12090

    def cuGetErrorName(self, number, name):
        name._obj.value = b"{name}"

    def cuGetErrorString(self, number, text):
        text._obj.value = b"{text}"


ctypes.CDLL = lambda name, *more, **named: (
    Cuda() if name == "libcuda.so.1" else real(name, *more, **named)
)
"""

# /proc/driver is there on every Linux; a directory in it can only be had by mounting over it.
DRIVER_UNIT = f"""\
[Unit]
Description=/proc/driver/nvidia from a recording
DefaultDependencies=no
Before=sysinit.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/mount --bind {PLAYED}/driver /proc/driver
[Install]
WantedBy=sysinit.target
"""

# The driver's library as a host without a GPU's device files sees it: every call fails, with
# CUDA_ERROR_NO_DEVICE. Linking needs the file, and a kernel that was linked needs it to be loaded.
LIBRARY = "/usr/lib/x86_64-linux-gnu/libcuda.so"
FUNCTIONS = (
    *("cuInit", "cuDriverGetVersion", "cuDeviceGet", "cuDeviceGetCount", "cuGetErrorString"),
    *("cuGetErrorName", "cuGetProcAddress", "cuGetProcAddress_v2", "cuLaunchKernel"),
    *("cuLaunchKernelEx", "cuModuleLoadData", "cuModuleGetFunction", "cuCtxGetCurrent"),
    *("cuTensorMapEncodeTiled", "cuFuncSetAttribute", "cuDeviceGetAttribute"),
    # What Triton's helper names besides.
    *("cuCtxGetLimit", "cuCtxSetCurrent", "cuCtxSetLimit"),
    *("cuDevicePrimaryCtxRetain", "cuFuncGetAttribute", "cuFuncSetCacheConfig"),
    *("cuPointerGetAttribute", "cuPointerGetAttributes", "cuOccupancyMaxActiveClusters"),
    *("cuTensorMapEncodeIm2col",),
)


def library(cache: Path) -> Path:
    """The directory with a small real `libcuda.so.1`."""
    source = "".join(f"int {name}(void) {{ return 100; }}\n" for name in FUNCTIONS)

    def make(beside: Path) -> None:
        soname = "-Wl,-soname,libcuda.so.1"
        out = beside / "libcuda.so.1"
        run("gcc", "-shared", "-fPIC", soname, "-o", out, "-x", "c", "-", text=source)

    return make_once(cache / "libcuda", make, source)


def play_library(node: Node, cache: Path) -> None:
    """Give a node that is not booted yet the driver's library, and no `libcuda.so` for linking."""
    version = "580.105.08"
    real = node.root / f"{LIBRARY}.{version}".lstrip("/")
    real.write_bytes((library(cache) / "libcuda.so.1").read_bytes())
    run("ldconfig", "-r", node.root)  # makes the link libcuda.so.1 and the loader's cache


def gpus(recording: str) -> list[dict[str, str]]:
    """The GPUs of a recording: one dictionary of query fields for each."""
    text = (RECORDINGS / recording / "query.txt").read_text()
    return [
        dict(line.split("=", 1) for line in block.splitlines())
        for block in text.strip().split("\n\n")
    ]


def cdi(recording: str) -> str:
    """A CDI specification (JSON, which is YAML) of kind nvidia.com/gpu for a recording's GPUs.

    Devices are named by index, by UUID and `all`, as nvidia-ctk names them.
    """
    shown = {gpu[key]: gpu["uuid"] for gpu in gpus(recording) for key in ("index", "uuid")}
    shown["all"] = ",".join(gpu["uuid"] for gpu in gpus(recording))
    devices = [
        {"name": name, "containerEdits": {"env": [f"PLAYED_GPU={value}"]}}
        for name, value in shown.items()
    ]
    specification = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    # The block form, as nvidia-ctk writes it.
    return yaml.safe_dump(specification, sort_keys=False)


def play_cuda(node: Node, number: int, name: str, text: str) -> None:
    """Let CUDA fail so in containers that get a GPU by CDI: with this number, name and text.

    Where a real specification mounts the driver's libcuda.so.1, Python's ctypes is given one that
    answers with these three; nothing else is played. `play_gpus` takes it away again.
    """
    folder = f"{PLAYED}/cuda"
    node.put(f"{folder}/sitecustomize.py", LIBCUDA.format(number=number, name=name, text=text))
    specification = yaml.safe_load(node.read("/etc/cdi/nvidia.yaml"))
    specification["containerEdits"] = {
        "env": [f"PYTHONPATH={folder}"],
        "mounts": [
            {"hostPath": folder, "containerPath": folder, "options": ["ro", "nosuid", "bind"]}
        ],
    }
    node.put("/etc/cdi/nvidia.yaml", yaml.safe_dump(specification, sort_keys=False))


def play_gpus(node: Node, recording: str, with_cdi: bool = True) -> None:
    """Let `node` be a host with the GPUs of `recording`; called again, it changes them.

    Quickest before `boot()`: afterwards it may restart Docker. `with_cdi=False` leaves Docker
    without a way to the GPUs, as on a host that lacks the container toolkit.
    """
    folder = RECORDINGS / recording
    if not (folder / "table.txt").is_file():
        raise HarnessError(f"no recording {recording!r} under {RECORDINGS}")
    if node.booted:
        node.run(f"rm -rf {PLAYED}/[a-ce-z]*")  # all but driver/, which may be mounted
    for name in ("query.txt", "q_x.xml", "table.txt", "exit_code"):
        if (folder / name).exists():
            node.put(f"{PLAYED}/{name}", (folder / name).read_text())
    node.put("/usr/bin/nvidia-smi", SMI.read_text(), 0o755)
    if (folder / "version.txt").exists():
        version = (folder / "version.txt").read_text()
        node.put(f"{PLAYED}/driver/nvidia/version", version)
        node.put("/etc/systemd/system/played-driver.service", DRIVER_UNIT)
        node.enable("played-driver.service", "sysinit.target")
    if with_cdi and (folder / "query.txt").exists():
        node.put("/etc/cdi/nvidia.yaml", cdi(recording))
        node.docker_settings(features={"cdi": True})
