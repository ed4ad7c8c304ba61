"""Healthy surveys, for tests of what is decided from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from facts.records import Docker, Gpu, Host, Nvidia, Smi, Survey
from plans.wishes import Service, Wishes, read_wishes

HOST = Host(
    architecture="x86_64",
    kernel="6.8.0-60-generic",
    os_id="ubuntu",
    os_version="24.04",
    os_name="Ubuntu 24.04.3 LTS",
    os_like=("debian",),
    glibc="2.39",
    uid=0,
    user="root",
    can_sudo=True,
    http_client="curl",
)


def docker(gpus: tuple[Gpu, ...] = (), **changes: Any) -> Docker:
    """Return a Docker with CDI that lists these GPUs by index and UUID."""
    names = [str(gpu.index) for gpu in gpus]
    names += [gpu.uuid for gpu in gpus if isinstance(gpu.uuid, str)]
    names += [
        device.uuid for gpu in gpus for device in gpu.mig_devices if isinstance(device.uuid, str)
    ]
    base = Docker(
        client="/usr/bin/docker",
        client_version="29.1.0",
        server_version="29.1.0",
        runtimes=("io.containerd.runc.v2", "nvidia", "runc"),
        cgroup_driver="systemd",
        cgroup_version="2",
        cdi_dirs=("/etc/cdi", "/var/run/cdi"),
        cdi_devices=tuple(f"nvidia.com/gpu={name}" for name in [*names, "all"]),
        nvidia_ctk_version="1.18.1",
    )
    return replace(base, **changes)


def gpu(index: int = 0, name: str = "NVIDIA L4", sm: str = "8.9", **changes: Any) -> Gpu:
    """Return a healthy GPU."""
    base = Gpu(
        index=index,
        name=name,
        uuid=f"GPU-{index:08d}-0000-0000-0000-000000000000",
        compute_capability=sm,
        memory_total_mib=23034,
        memory_used_mib=1,
        mig_enabled=False,
        mig_pending=False,
        ecc_uncorrected=0,
        remapped_pending=False,
        remapped_failure=False,
        recovery_action="None",
    )
    return replace(base, **changes)


def survey(
    *gpus: Gpu, driver: Any = "580.95.05", host: Host = HOST, node: str = "node", **nvidia: Any
) -> Survey:
    """Return the survey of a healthy node with these GPUs (one L4 where none is given)."""
    there = gpus or (gpu(),)
    return Survey(
        node=node,
        host=host,
        systemd_version=255,
        systemd_state="running",
        nvidia=replace(
            Nvidia(
                smi=Smi(exit_code=0, path="/usr/bin/nvidia-smi", source="query"),
                driver_version=driver,
                module_version=driver,
                module_kind="open",
                gpus=there,
                pci_devices=len(there),
            ),
            **nvidia,
        ),
        docker=docker(there),
    )


def wishes(*services: dict[str, Any], **more: Any) -> Wishes:
    """Return wishes for these services (one that uses GPU memory of one GPU where none is given)."""
    given = services or ({},)
    return read_wishes(
        {
            "services": [
                {"name": f"chat{number}" if number else "chat", "model": "Qwen/Qwen3-8B"}
                | {"port": 30000 + number}
                | one
                for number, one in enumerate(given)
            ],
            **more,
        },
        "node",
    )


def wish(service: dict[str, Any] | None = None, **more: Any) -> tuple[Service, Wishes]:
    """Return one service and the wishes it is part of, in the order that ``decide`` takes them."""
    all_of_it = wishes(service or {}, **more)
    return all_of_it.services[0], all_of_it
