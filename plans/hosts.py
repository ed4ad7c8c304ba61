"""What a host must be, whatever service it is to run: every reason it is not, at once."""

from __future__ import annotations

import re

from facts.records import Docker, Gpu, Survey, Unknown, known
from plans.gpus import called, capability_of
from plans.hostdata import Runtime, at_least, command, commands, host_data, limit
from plans.refusals import Caution, Refusal
from plans.rules import threshold, version_of
from plans.wishes import Wishes

SMI_PARTS = ("nvidia-smi", "smi.")
"""How the survey's parts and sections begin whose not returning is told as ``SMI_HUNG``, once."""


def host_findings(survey: Survey, wishes: Wishes) -> tuple[list[Refusal], list[Caution]]:
    """Return what refuses this host and what its operator should know.

    With ``unsupported`` an operating system, systemd or version outside the supported ones is a
    caution; what cannot work at all stays a refusal.
    """
    refusals: list[Refusal] = []
    cautions: list[Caution] = []
    for refusal in _support(survey):
        if wishes.unsupported:
            cautions.append(
                Caution(
                    "UNSUPPORTED_HOST",
                    f"{refusal.seen}, where {refusal.needed} is supported: tried because the "
                    "inventory says unsupported",
                )
            )
        else:
            refusals.append(refusal)
    refusals += _machine(survey)
    refusals += _unfinished(survey)
    found, said = _driver(survey)
    refusals += found
    cautions += said
    found, said = _fabric(survey)
    refusals += found
    cautions += said
    return refusals, cautions


def _support(survey: Survey) -> list[Refusal]:
    host = survey.host
    data = host_data()
    refusals = []
    wanted = "Ubuntu 22.04 or 24.04, DGX OS 6 or 7, Debian 12 or 13, or the RHEL family 9"
    named = f"{host.os_id} {host.os_version}"
    if known(host.os_name):
        named = f"{host.os_name}"
    advice = "Install one of these, or try it as it is with `unsupported: true` (--unsupported)"
    if not known(host.os_id) or not known(host.os_version):
        refusals.append(
            Refusal("UNSUPPORTED_OS", f"/etc/os-release: {named}", wanted, advice),
        )
    elif known(host.dgx_version):
        if not _version_in(host.dgx_version, data.dgx.versions):
            refusals.append(Refusal("UNSUPPORTED_OS", f"DGX OS {host.dgx_version}", wanted, advice))
    elif not any(
        system.id == host.os_id and _version_in(host.os_version, system.versions)
        for system in data.systems
    ):
        refusals.append(Refusal("UNSUPPORTED_OS", named, wanted, advice))
    version = survey.systemd_version
    if known(version) and version < int(limit("SYSTEMD")):
        refusals.append(
            Refusal(
                "SYSTEMD_TOO_OLD",
                f"systemd {version}",
                f"systemd {limit('SYSTEMD')} or newer",
                "Upgrade the operating system: systemd comes with it",
            )
        )
    return refusals


def _version_in(version: str, wanted: tuple[str, ...]) -> bool:
    return any(version == one or version.startswith(f"{one}.") for one in wanted)


def _machine(survey: Survey) -> list[Refusal]:
    host = survey.host
    refusals = []
    architectures = host_data().architectures
    if not known(host.architecture) or host.architecture not in architectures:
        refusals.append(
            Refusal(
                "UNSUPPORTED_ARCHITECTURE",
                f"architecture {host.architecture}",
                " or ".join(architectures),
                "There is no SGLang for another one: use another machine",
            )
        )
    version, state = survey.systemd_version, survey.systemd_state
    if not known(version) or (known(state) and state == "offline"):
        seen = f"systemd {version}" if not known(version) else f"systemd {version}, not running"
        advice = "Boot the node with systemd as process 1 (a container without it is no node)"
        if host.wsl:
            advice = (
                "Write [boot] systemd=true in /etc/wsl.conf, then run `wsl --shutdown` on Windows"
            )
        refusals.append(
            Refusal("SYSTEMD_MISSING", seen, f"systemd {limit('SYSTEMD')}, running", advice)
        )
    if not (known(host.uid) and host.uid == 0):
        user = host.user if known(host.user) else "USER"
        if host.can_sudo is True:
            sudo = "which may become root by sudo, but was not asked to"
            advice = "Add --sudo to the command, or '_sudo': True to the data of the host"
        else:
            sudo = "sudo needs a password" if host.can_sudo is False else f"sudo: {host.can_sudo}"
            advice = (
                "Add --ask-sudo-password; or --sudo, with 'sudo_password': {'env': 'NAME'} in the "
                "data of the host. Or connect as root ('ssh_user': 'root' in the data of the host), "
                "or allow it on the node and add --sudo: "
                f"echo '{user} ALL=(ALL) NOPASSWD: ALL' | "
                "sudo tee /etc/sudoers.d/sglang && sudo chmod 0440 /etc/sudoers.d/sglang"
            )
        refusals.append(
            Refusal(
                "NEED_ROOT",
                f"user {host.user} (uid {host.uid}), {sudo}",
                "root, or sudo",
                advice,
            )
        )
    if not known(host.http_client):
        refusals.append(
            Refusal(
                "HTTP_CLIENT_MISSING",
                f"curl, python3, wget: {host.http_client}",
                "a program on the node that can ask the service whether it is ready",
                command("install_curl", host),
            )
        )
    return refusals


def _unfinished(survey: Survey) -> list[Refusal]:
    of_one = {part for parts in host_data().runtime_parts.values() for part in parts}
    return [
        _not_returned(part)
        for part in survey.unfinished
        if part not in of_one
        and not (part.startswith(SMI_PARTS) and not known(survey.nvidia.smi.exit_code))
    ]


def unfinished_of(survey: Survey, runtime: Runtime) -> list[Refusal]:
    """Return a refusal for each part of the survey that this runtime alone needs and lacks."""
    mine = host_data().runtime_parts[runtime]
    return [_not_returned(part) for part in survey.unfinished if part in mine]


def unfinished_elsewhere(survey: Survey, runtime: Runtime) -> list[Caution]:
    """Return a caution for each part that did not return and that this runtime does not need."""
    return [
        Caution(
            "SURVEY_UNFINISHED", f"the survey's part {part} did not return; nothing here needs it"
        )
        for other, parts in host_data().runtime_parts.items()
        for part in survey.unfinished
        if other != runtime and part in parts
    ]


def _not_returned(part: str) -> Refusal:
    return Refusal(
        "SURVEY_UNFINISHED",
        f"the survey's part {part} did not return before the deadline",
        "every part of the survey",
        "Look for processes that hang (state D) on the node: ps -eo pid,stat,wchan:20,args | "
        "awk '$2 ~ /D/'. Then survey again",
    )


def smi_failed(survey: Survey) -> bool:
    """Say whether nvidia-smi gave no list of GPUs that can be relied on."""
    smi = survey.nvidia.smi
    if not known(smi.exit_code) or _failure_text(smi.text):
        return True
    return smi.exit_code != 0 and not _listed_all_the_same(survey)


def _listed_all_the_same(survey: Survey) -> bool:
    return bool(survey.nvidia.gpus) and survey.nvidia.smi.exit_code in host_data().smi_harmless


def _failure_text(text: str) -> bool:
    return any(
        one.text and re.search(one.text, text, re.IGNORECASE) for one in host_data().smi
    ) or bool(re.search(r"Failed to initialize NVML|NVIDIA-SMI has failed", text))


def _driver(survey: Survey) -> tuple[list[Refusal], list[Caution]]:
    nvidia, host = survey.nvidia, survey.host
    cautions: list[Caution] = []
    if host.vgpu_host or any(gpu.virtualization_mode == "Host VGPU" for gpu in nvidia.gpus):
        return [
            Refusal(
                "VGPU_HOST",
                "this host runs NVIDIA's vGPU manager",
                "a driver with CUDA: a vGPU host has none",
                "Make a guest with a vGPU, and name the guest in the inventory",
            )
        ], []
    if smi_failed(survey):
        return [_smi_refusal(survey)], []
    refusals: list[Refusal] = []
    # 2 says only that an old nvidia-smi doesn't know a field: what is lacking is said per GPU.
    if nvidia.smi.exit_code not in (0, 2):
        cautions.append(
            Caution(
                "SMI_WARNING",
                f"nvidia-smi ended with {nvidia.smi.exit_code} and lists its GPUs all the same: "
                "what it said is in the survey (sglang-node survey --record DIR)",
            )
        )
    if not nvidia.gpus:
        refusals.append(
            Refusal(
                "NO_GPU_FOUND",
                f"nvidia-smi lists no GPU; NVIDIA devices on the PCI bus: {nvidia.pci_devices}",
                "an NVIDIA GPU",
                command("install_driver", host),
            )
        )
    driver, module = nvidia.driver_version, nvidia.module_version
    if not known(driver) and nvidia.gpus and not host.wsl and not host.tegra:
        # The rules refuse each GPU for it too; said once here, it is about the node.
        refusals.append(
            Refusal(
                "DRIVER_UNREADABLE",
                f"driver version {driver}",
                "the version of the NVIDIA driver",
                "Ask on the node: nvidia-smi --query-gpu=driver_version --format=csv,noheader",
            )
        )
    if (
        known(driver)
        and known(module)
        and not host.wsl
        and version_of(driver) != version_of(module)
    ):
        refusals.append(
            Refusal(
                "DRIVER_MISMATCH",
                f"libraries of driver {driver}, kernel module {module}",
                "kernel module and driver libraries of one version",
                "The driver was upgraded under the running module: sudo reboot",
            )
        )
    devices = nvidia.pci_devices
    if known(devices) and devices > len(nvidia.gpus) and nvidia.gpus:
        cautions.append(
            Caution(
                "GPU_MISSING",
                f"the PCI bus shows {devices} NVIDIA GPUs and nvidia-smi lists {len(nvidia.gpus)}: "
                "one may have fallen off the bus (sudo dmesg | grep -i xid)",
            )
        )
    if nvidia.module_kind == "proprietary" and (new := [g for g in nvidia.gpus if _needs_open(g)]):
        cautions.append(
            Caution(
                "OPEN_MODULES",
                f"{', '.join(called(gpu) for gpu in new)}: the proprietary kernel modules are "
                f"loaded, and NVIDIA supports this generation with the open ones only. "
                f"{command('install_driver', host)}",
            )
        )
    return refusals, cautions


def driver_refusals(survey: Survey) -> list[Refusal]:
    """Return why no driver works on a node: none of it where one does."""
    return _driver(survey)[0]


def fabric_refusals(survey: Survey) -> list[Refusal]:
    """Return why the fabric of a node's GPUs is not ready: none of it where it is, or has none."""
    return _fabric(survey)[0]


def _needs_open(gpu: Gpu) -> bool:
    # Grace Hopper and Blackwell:
    # https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html
    version = version_of(capability_of(gpu))
    least = version_of(threshold("open_modules_required_capability")) or ()
    return (version is not None and version >= least) or "GH200" in gpu.name


def _smi_refusal(survey: Survey) -> Refusal:
    smi, host = survey.nvidia.smi, survey.host
    nouveau = (
        " The nouveau module is loaded: it keeps NVIDIA's out." if survey.nvidia.nouveau else ""
    )
    if isinstance(smi.exit_code, Unknown):
        if smi.exit_code.why == "absent":
            advice = command("install_driver", host)
            if host.wsl:
                advice = "It should be at /usr/lib/wsl/lib/nvidia-smi. " + advice
            return Refusal(
                "SMI_MISSING",
                f"no nvidia-smi on the node; NVIDIA devices on the PCI bus: "
                f"{survey.nvidia.pci_devices}.{nouveau}",
                "the NVIDIA driver",
                advice,
            )
        return Refusal(
            "SMI_HUNG",
            f"nvidia-smi did not end ({smi.exit_code})",
            "a driver that answers",
            "Read `sudo dmesg | grep -i -e xid -e NVRM` and stop what uses the GPUs; a process in "
            "state D cannot be killed: sudo reboot",
        )
    text = " ".join(smi.text.split())
    data = host_data().smi
    by_text = (one for one in data if one.text and re.search(one.text, text, re.IGNORECASE))
    by_code = (one for one in data if smi.exit_code in one.exit_codes)
    found = next(by_text, None) or next(by_code, None) or data[-1]
    said = f": {text[:300]}" if text else ""
    return Refusal(
        found.code,
        f"nvidia-smi ended with {smi.exit_code}{said}{nouveau}",
        found.needed,
        found.advice.format_map(commands(host)),
    )


def _fabric(survey: Survey) -> tuple[list[Refusal], list[Caution]]:
    """Without a ready fabric CUDA fails with error 802 (system not yet initialized).

    Cards without NVSwitch have no fabric, which is no error.
    """
    nvidia = survey.nvidia
    if smi_failed(survey):
        return [], []
    refusals: list[Refusal] = []
    cautions: list[Caution] = []
    bad = [gpu for gpu in nvidia.gpus if _fabric_bad(gpu)]
    has_fabric = nvidia.nvswitch or any(known(gpu.fabric_state) for gpu in nvidia.gpus)
    if not has_fabric:
        return [], []
    driver, version, state = (
        nvidia.driver_version,
        nvidia.fabricmanager_version,
        nvidia.fabricmanager,
    )
    restart = (
        "sudo systemctl enable --now nvidia-fabricmanager && systemctl status nvidia-fabricmanager"
    )
    install = f"Install nvidia-fabricmanager of version {driver} exactly, then: {restart}"
    proven = bool(nvidia.gpus) and all(
        gpu.fabric_state == "Completed" and gpu.fabric_status == "Success" for gpu in nvidia.gpus
    )
    if nvidia.nvswitch and state != "active":
        refusals.append(
            Refusal(
                "FABRIC_MANAGER",
                f"NVSwitch, and nvidia-fabricmanager is {state}",
                "nvidia-fabricmanager, active, of the driver's version",
                install if not known(state) else restart,
            )
        )
    if nvidia.nvswitch and known(version) and known(driver):
        if version_of(version) != version_of(driver):
            refusals.append(
                Refusal(
                    "FABRIC_MANAGER",
                    f"nvidia-fabricmanager {version}, driver {driver}",
                    f"nvidia-fabricmanager {driver} exactly",
                    install,
                )
            )
    elif nvidia.nvswitch and not proven:
        cautions.append(
            Caution(
                "ASSUMED_FABRIC",
                f"the version of nvidia-fabricmanager could not be read ({version}): "
                f"assumed to be that of the driver, {driver}",
            )
        )
    if bad:
        words = ", ".join(f"{called(gpu)}: {gpu.fabric_state}/{gpu.fabric_status}" for gpu in bad)
        refusals.append(
            Refusal(
                "FABRIC_NOT_READY",
                f"fabric {words}",
                "fabric state Completed, status Success",
                "Read `nvidia-smi -q | grep -A3 Fabric` and `journalctl -u nvidia-fabricmanager`; "
                "the fabric may need a minute after boot",
            )
        )
    if (
        not proven
        and nvidia.nvlsm is False
        and any(_needs_nvlsm(survey, gpu) for gpu in nvidia.gpus)
    ):
        refusals.append(
            Refusal(
                "NVLSM_MISSING",
                "HGX B200/B300, whose fabric is not ready, without NVLSM",
                "NVIDIA's NVLink subnet manager (nvlsm) beside nvidia-fabricmanager",
                "Install nvlsm of the driver's branch from NVIDIA's repository, then: "
                "sudo systemctl restart nvidia-fabricmanager",
            )
        )
    return refusals, cautions


def _fabric_bad(gpu: Gpu) -> bool:
    if not known(gpu.fabric_state):
        return False
    return gpu.fabric_state != "Completed" or (
        known(gpu.fabric_status) and gpu.fabric_status != "Success"
    )


def _needs_nvlsm(survey: Survey, gpu: Gpu) -> bool:
    # HGX boards are x86_64; in GB200/GB300 racks the switch trays carry NVLSM.
    # https://github.com/siderolabs/extensions/issues/717
    return survey.host.architecture == "x86_64" and capability_of(gpu) in ("10.0", "10.3")


def docker_refusals(survey: Survey) -> list[Refusal]:
    """Return why Docker on this node cannot run the image."""
    docker, host = survey.docker, survey.host
    if "docker" in survey.unfinished:
        return []  # said already, and nothing below is known
    refusals = []
    if not known(docker.client):
        podman = known(docker.podman_version)
        seen = f"docker: {docker.client}" + (f"; podman {docker.podman_version}" if podman else "")
        return [
            Refusal(
                "DOCKER_MISSING",
                seen,
                f"Docker {limit('DOCKER')} or newer",
                command("install_docker", host),
            )
        ]
    if docker.snap:
        refusals.append(
            Refusal(
                "DOCKER_SNAP",
                f"Docker is the snap ({docker.client})",
                "Docker as a package: the snap cannot see the driver's libraries",
                f"sudo snap remove docker && {command('install_docker', host)}",
            )
        )
    if docker.rootless:
        refusals.append(
            Refusal(
                "DOCKER_ROOTLESS",
                "Docker runs rootless",
                "Docker's system daemon: the service's slice and credentials are root's",
                "sudo systemctl enable --now docker && docker context use default",
            )
        )
    refusals += _daemon(docker)
    return refusals


def _daemon(docker: Docker) -> list[Refusal]:
    server = docker.server_version
    if not isinstance(server, Unknown):
        if at_least(server, limit("DOCKER")):
            return []
        return [
            Refusal(
                "DOCKER_TOO_OLD",
                f"Docker {server}",
                f"Docker {limit('DOCKER')} or newer",
                "Upgrade it: https://docs.docker.com/engine/install/",
            )
        ]
    if server.why == "absent":
        return [
            Refusal(
                "DOCKER_DOWN",
                "the docker program is there and no daemon answers",
                "Docker's daemon, running",
                "sudo systemctl enable --now docker || journalctl -u docker -n 50",
            )
        ]
    if re.search("permission denied", server.text, re.IGNORECASE):
        return [
            Refusal(
                "DOCKER_NO_PERMISSION",
                f"docker: {server.text[:200]}",
                "a user who may use Docker's socket",
                "Connect as root or with sudo; `sudo usermod -aG docker $USER` gives this user the "
                "rights of root",
            )
        ]
    return [
        Refusal(
            "DOCKER_UNREADABLE",
            f"docker version: {server}",
            "an answer of Docker's daemon",
            "Ask on the node: sudo docker version; systemctl status docker",
        )
    ]
