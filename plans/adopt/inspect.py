"""A container as ``docker inspect`` gives it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from plans.adopt.data import adopt_data, lost_option
from plans.adopt.docker_run import of_cdi
from plans.adopt.records import Container, Gpus, Mount, Note, Port

_DEFAULT_SHM = 64 * 2**20
"""Bytes of /dev/shm that Docker gives where nobody says more."""


def read_inspect(raw: Mapping[str, Any], image: Mapping[str, Any] | None) -> Container:
    """Return the container of one object of ``docker inspect``.

    ``image`` is the object of ``docker image inspect`` for its image: what stands there is the
    image's own and nobody's choice. None: it is not known, and only variables that mean
    something to the server count as chosen.
    """
    config, host = _mapping(raw.get("Config")), _mapping(raw.get("HostConfig"))
    own = _mapping(_mapping(image).get("Config"))
    environment = _environment(config.get("Env"))
    for name, value in _environment(own.get("Env")).items():
        if environment.get(name) == value:
            del environment[name]
    if image is None:
        data = adopt_data()
        environment = {
            name: value
            for name, value in environment.items()
            if name.startswith(data.server_variables) and name not in data.variables_of_images
        }
    devices = [_mapping(one) for one in _items(host.get("Devices"))]
    fabric = [d for d in devices if str(d.get("PathOnHost", "")).startswith("/dev/infiniband")]
    gpus = _gpus(host, environment)
    if host.get("Runtime") == "nvidia" and "NVIDIA_VISIBLE_DEVICES" not in environment:
        visible = _environment(config.get("Env")).get("NVIDIA_VISIBLE_DEVICES")
        gpus = gpus or ("all" if visible == "all" else None)
    shm = host.get("ShmSize")
    policy = _mapping(host.get("RestartPolicy"))
    entrypoint = _texts(config.get("Entrypoint"))
    return Container(
        image=str(config.get("Image") or raw.get("Image") or ""),
        words=(*entrypoint, *_texts(config.get("Cmd"))),
        environment=environment,
        mounts=_mounts(raw, host),
        ports=_ports(host),
        network=str(host.get("NetworkMode") or "bridge"),
        shm_bytes=shm if isinstance(shm, int) and shm not in (0, _DEFAULT_SHM) else None,
        ulimits={
            str(one.get("Name")): int(one["Hard"])
            for one in map(_mapping, _items(host.get("Ulimits")))
            if isinstance(one.get("Hard"), int)
        },
        gpus=gpus,
        rdma=bool(fabric) or host.get("Privileged") is True,
        restart=str(policy.get("Name") or "no"),
        init=host.get("Init") is True,
        lost=tuple(_lost(config, host, own, devices, entrypoint)),
    )


def _gpus(host: Mapping[str, Any], environment: Mapping[str, str]) -> Gpus:
    for one in map(_mapping, _items(host.get("DeviceRequests"))):
        ids = _texts(one.get("DeviceIDs"))
        cdi = [each.partition("=")[2] for each in ids if each.startswith("nvidia.com/gpu=")]
        if cdi:
            return of_cdi(cdi)
        if one.get("Driver") == "cdi":
            continue
        if ids:
            return tuple(ids)
        count = one.get("Count")
        if isinstance(count, int):
            return "all" if count < 0 else count
    return None


def _mounts(raw: Mapping[str, Any], host: Mapping[str, Any]) -> tuple[Mount, ...]:
    found = []
    for one in map(_mapping, _items(raw.get("Mounts"))):
        # Of a named volume Docker tells where it lies: a path of the node too.
        source, target = one.get("Source") or one.get("Name"), one.get("Destination")
        if isinstance(source, str) and isinstance(target, str):
            found.append(Mount(source, target, one.get("RW") is False))
    return tuple(sorted(found, key=lambda mount: mount.target))


def _ports(host: Mapping[str, Any]) -> tuple[Port, ...]:
    found = []
    for inside, outside in _mapping(host.get("PortBindings")).items():
        number, _, kind = str(inside).partition("/")
        for one in map(_mapping, _items(outside)):
            port = str(one.get("HostPort") or "")
            if kind in ("", "tcp") and number.isdigit() and port.isdigit():
                found.append(Port(int(number), int(port), str(one.get("HostIp") or "")))
    return tuple(found)


def _lost(
    config: Mapping[str, Any],
    host: Mapping[str, Any],
    own: Mapping[str, Any],
    devices: list[Mapping[str, Any]],
    entrypoint: list[str],
) -> Iterable[Note]:
    def shown(option: str, value: object = "") -> Note:
        return lost_option(option, f"--{option} {value}".strip())

    if host.get("Privileged") is True:
        yield shown("privileged")
    for key, option in (("CapAdd", "cap-add"), ("SecurityOpt", "security-opt"), ("Dns", "dns"),
                        ("ExtraHosts", "add-host"), ("VolumesFrom", "volumes-from")):  # fmt: skip
        for value in _texts(host.get(key)):
            if (key, value) != ("SecurityOpt", "label=disable") or not host.get("Privileged"):
                yield shown(option, value)
    for one in devices:
        path = str(one.get("PathOnHost"))
        if not path.startswith("/dev/nvidia"):
            yield shown("device", path)
    if entrypoint != _texts(own.get("Entrypoint")) and own:
        yield shown("entrypoint", " ".join(entrypoint[:1]))
    for key, option in (("User", "user"), ("WorkingDir", "workdir")):
        chosen = config.get(key)
        if chosen and own and chosen != own.get(key):
            yield shown(option, chosen)
    for key, option in (("PidMode", "pid"), ("UTSMode", "uts"), ("UsernsMode", "userns"),
                        ("CgroupParent", "cgroup-parent"), ("CpusetCpus", "cpuset-cpus"),
                        ("CpusetMems", "cpuset-mems"), ("Memory", "memory"),
                        ("OomScoreAdj", "oom-score-adj")):  # fmt: skip
        limit = host.get(key)
        if limit:
            yield shown(option, limit)
    if isinstance(cpus := host.get("NanoCpus"), int) and cpus > 0:
        yield shown("cpus", f"{cpus / 1e9:g}")
    for path in _mapping(host.get("Tmpfs")):
        if path not in ("/tmp",):
            yield shown("tmpfs", path)
    for name, value in _mapping(host.get("Sysctls")).items():
        yield shown("sysctl", f"{name}={value}")


def _environment(value: Any) -> dict[str, str]:
    pairs = [text.partition("=") for text in _texts(value)]
    return {name: text for name, equals, text in pairs if equals}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return [one for one in _items(value) if isinstance(one, str)]
