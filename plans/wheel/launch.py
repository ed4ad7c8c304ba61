"""The wheel runtime's part of a deployment: its units, and what they read."""

from __future__ import annotations

from plans import paths, quoting
from plans.launch import TEMPLATES, Launch, PlannedFile, render, server_environment
from plans.wishes import Limits, Service

HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp", "/dev/shm")
"""Directories of which the unit shows nothing of the node's (ProtectHome=, PrivateTmp=, a /dev/shm
of its own): what is read there is let in."""


def wheel_unit_file(service: str) -> PlannedFile:
    """Return the unit of a service: the same text for all, beside the image runtime's template."""
    text = (TEMPLATES / paths.WHEEL_UNIT_TEMPLATE).read_text(encoding="utf-8")
    return PlannedFile(paths.wheel_unit(service), text)


def devices_unit_file() -> PlannedFile:
    """Return the unit that makes the device files of GPUs before a service starts."""
    text = (TEMPLATES / paths.DEVICES_UNIT_NAME).read_text(encoding="utf-8")
    return PlannedFile(paths.DEVICES_UNIT, text)


def drop_in_part(launch: Launch) -> str:
    """Return what the drop-in of this runtime has more: limits, shared memory, hidden paths."""
    seen = launch.read_and_written
    hidden = [path for path, writable in seen.items() if not writable and is_hidden(path)]
    # Not all caches: those of other builds are no business of this server.
    written = launch.cache_directory
    return render(
        "drop-in-wheel.conf.j2",
        limits=_limits(launch.service.ulimits),
        shm_size=launch.service.shm_size.removesuffix("b"),  # bytes have no letter to the kernel
        read=sorted(hidden),
        written=[written] if is_hidden(written) else [],
    )


def is_hidden(path: str) -> bool:
    """Say whether the unit hides a path."""
    return any(path == one or path.startswith(f"{one}/") for one in HIDDEN)


def _limits(ulimits: Limits) -> dict[str, str]:
    return {
        name: "infinity" if value == -1 else str(value)
        for name, value in ulimits.model_dump().items()
    }


def wheel_environment(launch: Launch) -> dict[str, str]:
    """Return the server's environment: ours, the GPUs', then the operator's.

    Nothing of it is inherited: the unit starts with no other variables than systemd's own.
    """
    assert launch.environment is not None
    home = launch.environment.cuda_home
    search = [f"{launch.environment.directory}/bin", *([f"{home.path}/bin"] if home else [])]
    return {
        "PATH": ":".join([*search, paths.UNIT_PATH]),
        # What compilers say is read for known lines, and a host may speak another language.
        "LC_ALL": "C.UTF-8",
        **({"CUDA_HOME": home.path} if home else {}),
        **server_environment(launch),
        **gpu_environment(launch),
        **launch.decision.environment,
        **launch.service.environment,
    }


def gpu_environment(launch: Launch) -> dict[str, str]:
    """Return the variables that choose the GPUs: one by its UUID, several by their index.

    SGLang reads each of several as a number where it looks for NVLink between them
    (custom_all_reduce_utils.py of 0.5.22), and a UUID is none. The order is that of the bus,
    as nvidia-smi numbers them. Empty for a service on the CPU device, which sees none.
    """
    if launch.server.get("device") == "cpu":
        return {"CUDA_VISIBLE_DEVICES": ""}
    wanted = wanted_uuids(launch)
    if len(wanted) > 1:
        wanted = [str(gpu.index) for gpu in launch.decision.gpus]
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **({"CUDA_VISIBLE_DEVICES": ",".join(wanted)} if wanted else {}),
    }


def wanted_uuids(launch: Launch) -> list[str]:
    """Return the UUIDs of the service's GPUs, or of the MIG devices that it names."""
    given: Service = launch.service
    named = [one for one in given.gpus if isinstance(one, str)] if given.gpus != "all" else []
    mig = [one for one in named if one.startswith("MIG-")]
    if mig:
        return mig
    return [
        gpu.uuid if isinstance(gpu.uuid, str) else str(gpu.index) for gpu in launch.decision.gpus
    ]


def wheel_settings(launch: Launch) -> dict[str, str]:
    """Return what ``launch.env`` has of this runtime."""
    assert launch.environment is not None
    return {"SGLANG_ENVIRONMENT": launch.environment.directory}


def wheel_files(
    launch: Launch,
    environment: dict[str, str],
    deployment: paths.Deployment,
    config: str,
    words: str,
    comment: str,
) -> tuple[PlannedFile, ...]:
    """Return the files of a deployment that only this runtime has.

    ``config`` is the file with the server's arguments, ``words`` those that it cannot carry.
    """
    assert launch.environment is not None
    started_with = {
        # The unit's own words, and the number by which a survey knows what runs; SGLang reads
        # none of them. What the gate needs is in launch.env alone: SGLANG_PORT means another
        # thing to SGLang.
        "SGLANG_DEPLOYMENT": str(deployment.number),
        "SGLANG_ENVIRONMENT": launch.environment.directory,
        "SGLANG_MODEL": launch.service.model,
        "SGLANG_SERVER_ARGUMENTS": words,
    }
    own = config == deployment.file(paths.SERVER_YAML)
    return (
        # Only root reads it: an operator may have put something private there.
        PlannedFile(
            deployment.file(paths.SERVICE_ENV),
            quoting.environment_file({**environment, **started_with}, comment),
            "0600",
        ),
        PlannedFile(deployment.file(paths.CONFIG), "", link=paths.SERVER_YAML if own else config),
        PlannedFile(deployment.file(paths.CACHE), "", link=launch.cache_directory),
    )
