"""How the chosen GPUs reach the container, and why so.

CDI where the node has it, because a container keeps its GPUs over a
``systemctl daemon-reload`` there; else the nvidia runtime, which makes a CDI
specification by itself from toolkit 1.18 on; else ``docker run --gpus``.
https://github.com/NVIDIA/cloud-native-docs/blob/main/container-toolkit/troubleshooting.md
"""

from __future__ import annotations

from facts.records import ABSENT, Docker, Survey, known
from plans.decision import GpuAccess
from plans.gpus import Chosen
from plans.hostdata import at_least, command, limit
from plans.refusals import Caution, Refusal
from plans.rules import threshold

KIND = "nvidia.com/gpu"

CAPABILITIES = "compute,utility"
"""Of the driver's libraries: CUDA, and NVML for nvidia-smi; a server needs no graphics.

https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
"""

Access = tuple[GpuAccess | None, list[Refusal], list[Caution]]


def gpu_access(survey: Survey, chosen: tuple[Chosen, ...]) -> Access:
    """Return how these GPUs reach a container on this node, or the refusals why they cannot.

    Takes the survey and the GPUs (at least one; none gives no access and no refusal). The
    word of ``--gpus`` holds double quotes that are part of it: Docker reads it as CSV.
    """
    docker = survey.docker
    if not chosen:
        return None, [], []
    cdi, why_not = _cdi(survey, chosen)
    # On Jetson the nvidia runtime knows what CDI specifications of that board may lack.
    if cdi is not None and not (survey.host.tegra and "nvidia" in docker.runtimes):
        return cdi, [], _selinux(survey)
    uuids = [one.uuid for one in chosen]
    if "nvidia" in docker.runtimes:
        names = [
            uuid if known(uuid) else _index(one) for uuid, one in zip(uuids, chosen, strict=True)
        ]
        missing = _unnamed(chosen)
        if missing:
            return None, [missing], []
        return _runtime(survey, ",".join(str(name) for name in names), why_not)
    if known(docker.nvidia_ctk_version):
        missing = _unnamed(chosen)
        if missing:
            return None, [missing], []
        return _gpus(survey, chosen, why_not)
    return None, [_no_toolkit(survey, why_not)], []


def _cdi(survey: Survey, chosen: tuple[Chosen, ...]) -> tuple[GpuAccess | None, str]:
    """Return access by CDI, or None and why it is not taken."""
    docker = survey.docker
    server = docker.server_version
    if not docker.cdi_dirs:
        return None, "Docker's CDI is off"
    if known(server) and not at_least(server, limit("DOCKER_CDI")):
        return None, f"Docker {server} knows no CDI devices (from {limit('DOCKER_CDI')} on)"
    toolkit = docker.nvidia_ctk_version
    if (
        known(server)
        and known(toolkit)
        and at_least(toolkit, limit("TOOLKIT_NEW_SPEC"))
        and not at_least(server, limit("DOCKER_CDI_NEW_SPEC"))
    ):
        return None, (
            f"toolkit {toolkit} writes CDI specifications that Docker {server} cannot read "
            f"(from {limit('DOCKER_CDI_NEW_SPEC')} on)"
        )
    listed = {name.removeprefix(f"{KIND}=") for name in docker.cdi_devices if name.startswith(KIND)}
    if not listed:
        return None, "no CDI specification lists a GPU"
    names = [_listed(one, listed) for one in chosen]
    found = [name for name in names if name is not None]
    if len(found) == len(chosen):
        return (
            GpuAccess(
                "cdi",
                tuple(f"--device={KIND}={name}" for name in found),
                {},
                f"CDI: the node's specification lists {_all(found)}; the container keeps its GPUs "
                "over a daemon-reload",
            ),
            "",
        )
    if "all" in listed and (survey.host.wsl or _every(survey, chosen)):
        # Under WSL a specification has the one device "all".
        environment = {}
        if not _every(survey, chosen):
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(
                str(one.uuid) if known(one.uuid) else str(one.gpu.index) for one in chosen
            )
        return (
            GpuAccess(
                "cdi",
                (f"--device={KIND}=all",),
                environment,
                "CDI: the node's specification lists its GPUs as one device, all",
            ),
            "",
        )
    lacking = _all([one.text for one, name in zip(chosen, names, strict=True) if name is None])
    return None, f"the node's CDI specification does not list {lacking} (it may be stale)"


def _listed(one: Chosen, listed: set[str]) -> str | None:
    # A UUID names one GPU whatever a stale specification has under an index.
    names = [one.uuid] if known(one.uuid) else []
    if one.mig:
        names.append(f"{one.gpu.index}:{one.mig.index}")
    else:
        names.append(str(one.gpu.index))
    return next((name for name in names if name in listed), None)


def _every(survey: Survey, chosen: tuple[Chosen, ...]) -> bool:
    return not any(one.mig for one in chosen) and len(chosen) == len(survey.nvidia.gpus)


def _index(one: Chosen) -> str:
    return f"{one.gpu.index}:{one.mig.index}" if one.mig else str(one.gpu.index)


def _unnamed(chosen: tuple[Chosen, ...]) -> Refusal | None:
    """Refuse a MIG device without a UUID: nothing else names it to a container for certain."""
    lacking = [one.text for one in chosen if one.mig and not known(one.uuid)]
    if not lacking:
        return None
    return Refusal(
        "GPU_NOT_FOUND",
        f"{_all(lacking)}: no UUID could be read",
        "the UUID of each MIG device",
        "Read them on the node with `nvidia-smi -L`",
    )


def jit_cdi(docker: Docker) -> bool:
    """Say whether the nvidia runtime works by CDI underneath on this node.

    From toolkit 1.18 on it does unless its configuration says ``legacy``; before, only where
    the configuration says ``cdi``.
    """
    mode = docker.nvidia_runtime_mode
    if known(mode) and mode in ("cdi", "jit-cdi"):
        return True
    if known(mode) and mode in ("legacy", "csv"):
        return False
    toolkit = docker.nvidia_ctk_version
    return known(toolkit) and at_least(toolkit, threshold("toolkit_jit_cdi"))


def _runtime(survey: Survey, devices: str, why_not: str) -> Access:
    docker = survey.docker
    cautions = _selinux(survey)
    if jit_cdi(docker):
        under = f"which is CDI underneath (toolkit {docker.nvidia_ctk_version})"
    elif survey.host.tegra:
        under = "as boards with Linux for Tegra need it"
    else:
        under = "in its legacy mode"
        cautions.append(_legacy(docker))
    reason = f"the nvidia runtime, {under}: {why_not or 'it is preferred on this board'}"
    access = GpuAccess(
        "runtime",
        ("--runtime=nvidia",),
        {"NVIDIA_VISIBLE_DEVICES": devices, "NVIDIA_DRIVER_CAPABILITIES": CAPABILITIES},
        reason,
    )
    return access, [], cautions


def _gpus(survey: Survey, chosen: tuple[Chosen, ...], why_not: str) -> Access:
    docker = survey.docker
    mode = docker.nvidia_runtime_mode
    if known(mode) and mode in ("cdi", "csv", "jit-cdi"):
        # "invoking the NVIDIA Container Runtime Hook directly ... is not supported":
        # https://github.com/NVIDIA/nvidia-container-toolkit/blob/main/cmd/nvidia-container-runtime-hook/hook_config.go
        return (
            None,
            [
                Refusal(
                    "GPU_ACCESS",
                    f"nvidia-container-toolkit is set to mode {mode}, Docker has no nvidia "
                    f"runtime, and {why_not}",
                    "CDI, or Docker's nvidia runtime: --gpus fails in that mode",
                    "sudo nvidia-ctk runtime configure --runtime=docker && "
                    "sudo systemctl restart docker",
                )
            ],
            [],
        )
    devices = ",".join(str(one.uuid) if known(one.uuid) else _index(one) for one in chosen)
    access = GpuAccess(
        "gpus",
        (f'--gpus="device={devices}"',),
        {"NVIDIA_DRIVER_CAPABILITIES": CAPABILITIES},
        f"docker run --gpus: {why_not}, and Docker has no nvidia runtime",
    )
    return access, [], [*_selinux(survey), _legacy(docker)]


def _legacy(docker: Docker) -> Caution:
    toolkit = docker.nvidia_ctk_version
    text = (
        "GPUs are given to the container in the legacy mode: a `systemctl daemon-reload` on this "
        "node can take them away from it (NVML: Unknown Error) until it is restarted. "
        "Turn on CDI: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml, with Docker 28.2 "
        'or newer (or "features": {"cdi": true} in /etc/docker/daemon.json from 25.0 on)'
    )
    if not known(toolkit):
        text += "; the toolkit's version could not be read, so the legacy mode is assumed"
    return Caution("LEGACY_ACCESS", text)


def _selinux(survey: Survey) -> list[Caution]:
    if survey.host.selinux != "Enforcing":
        return []
    return [
        Caution(
            "SELINUX_ENFORCING",
            "SELinux is enforcing: if the container reports `Insufficient Permissions`, its label "
            "keeps it from /dev/nvidia*; see `sudo ausearch -m avc -ts recent`, and let containers "
            "use devices: sudo setsebool -P container_use_devices on. Where `docker info` says selinux, "
            "directories that are mounted into containers need a label as well: sudo chcon -Rt "
            "container_file_t /var/lib/sglang /var/cache/sglang, and the model's directory",
        )
    ]


def _no_toolkit(survey: Survey, why_not: str) -> Refusal:
    docker = survey.docker
    devices = [name for name in docker.cdi_devices if name.startswith(KIND)]
    if devices and not docker.cdi_dirs:
        return Refusal(
            "CDI_OFF",
            f"CDI specifications list {_all(devices)}, but {why_not}, "
            "and there is no nvidia runtime",
            'Docker 28.2 or newer, or "features": {"cdi": true} in /etc/docker/daemon.json',
            "Set it there, then: sudo systemctl restart docker. Or: "
            "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
        )
    if devices:
        return Refusal(
            "CDI_STALE",
            f"{why_not}; it lists {_all(devices)}, and there is no nvidia runtime",
            "a CDI specification of the GPUs as they are now",
            "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )
    toolkit = docker.nvidia_ctk_version
    state = "is not there" if toolkit == ABSENT else f"could not be read ({toolkit})"
    return Refusal(
        "TOOLKIT_MISSING",
        f"nvidia-ctk {state}, Docker has no nvidia runtime, and {why_not}",
        "the NVIDIA Container Toolkit, which gives containers their GPUs",
        command("install_toolkit", survey.host),
    )


def _all(words: list[str]) -> str:
    return ", ".join(words)
