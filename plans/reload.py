"""What a ``systemctl daemon-reload`` does to containers, and who must have a say in it.

systemd writes the device rules of containers anew when it reloads; what the legacy hook
added to them behind its back is lost, and such a container has no GPU any more until it
is restarted ("Failed to initialize NVML: Unknown Error").
https://github.com/NVIDIA/nvidia-container-toolkit/discussions/1133
"""

from __future__ import annotations

from facts.records import GpuContainer, ServiceState, Survey, Unknown, known
from plans import paths
from plans.access import jit_cdi
from plans.findings import Findings
from plans.refusals import Caution, Refusal

WORD = "--allow-daemon-reload"


def endangered(survey: Survey) -> tuple[GpuContainer, ...] | Unknown:
    """Return the running containers that a daemon-reload takes the GPUs from, or why that is unknown.

    Where Docker's cgroup driver could not be read it is assumed to be systemd's, which is
    Docker's own default with cgroup version 2. What compiles kernels ahead is not among them: it
    serves nobody, and the next run that compiles ends it.
    """
    docker = survey.docker
    if known(docker.cgroup_driver) and docker.cgroup_driver != "systemd":
        return ()
    if not known(docker.gpu_containers):
        return docker.gpu_containers
    # The runtime's other modes put the devices into the container's specification itself.
    by_hook = not (jit_cdi(docker) or survey.host.tegra or docker.nvidia_runtime_mode == "csv")
    return tuple(
        one
        for one in docker.gpu_containers
        if not one.name.startswith(paths.AHEAD_BEGINS)
        and (one.mode == "legacy" or (one.mode == "runtime" and by_hook))
    )


def stops_first(survey: Survey, state: ServiceState) -> bool:
    """Say whether a service would lose its GPUs by a reload, or may: it is stopped before one."""
    name, lost = paths.container_of(state.name), endangered(survey)
    if not known(lost):
        return state.active_state == "active"
    return any(one.name == name for one in lost)


def check_reload(survey: Survey, service: str | None, allowed: bool, found: Findings) -> None:
    """Refuse a reload that takes the GPUs from other containers; only warn where it is allowed."""
    finding = what_reload_does(survey, service)
    if finding is None:
        return
    if allowed:
        found.cautions.append(Caution(finding.code, finding.seen, service))
    else:
        found.refusals.append(finding)


def what_reload_does(
    survey: Survey, service: str | None, own: tuple[str, ...] = ()
) -> Refusal | None:
    """Return the refusal of a daemon-reload on this node, or None where it harms nobody.

    ``service``, and those in ``own``, are stopped before it, so theirs do not count.
    """
    spared = {paths.container_of(name) for name in (*own, *([service] if service else []))}
    lost = endangered(survey)
    if not known(lost):
        return Refusal(
            "LEGACY_GPU_CONTAINERS",
            "whether the daemon-reload takes the GPUs from running containers is not known: docker "
            f"did not say which run ({lost})",
            "an answer of docker ps, or your word",
            f"docker ps on the node, then plan again; to go on all the same: {WORD}",
            service,
        )
    others = [one for one in lost if one.name not in spared]
    if not others:
        return None
    ours = {paths.container_of(name): name for name in survey.services}
    named = [
        f"{one.name} ({'our service ' + ours[one.name] if one.name in ours else one.image})"
        for one in others
    ]
    foreign = [one.name for one in others if one.name not in ours]
    mends = [
        f"sglang-node restart --service {ours[one.name]}" for one in others if one.name in ours
    ]
    mends += [f"docker restart {' '.join(foreign)}"] if foreign else []
    return Refusal(
        "LEGACY_GPU_CONTAINERS",
        "the daemon-reload takes the GPUs from running containers that have them in Docker's "
        f"legacy mode, until each is restarted: {', '.join(named)}",
        "your word, or these containers with their GPUs by CDI",
        f"to go on: {WORD} (allow_daemon_reload in an inventory); afterwards: {'; '.join(mends)}",
        service,
    )
