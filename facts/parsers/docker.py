"""The container engine, its images and containers, NVIDIA's container toolkit, and CDI."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from facts import fields
from facts.records import ABSENT, Docker, GpuContainer, LocalImage, Unknown
from facts.sections import Section, Sections

OURS = "sglang-"
"""What the names of the toolkit's own containers begin with."""
CONTAINERD_ROOT = "/var/lib/containerd"
"""containerd's root where its configuration names none (containerd-config.toml(5))."""

_NO_DAEMON = (
    "Cannot connect to the Docker daemon",
    "check if the path is correct and if the daemon",
)
"""What the client says where no daemon listens; the second since Docker 29."""
_NONE = "<none>"
_ROOT = re.compile(r"""\s*root\s*=\s*["']([^"']+)["']""")
_YAML_KEY = re.compile(r'(?P<indent> *)(?P<item>- +)?"?(?P<key>\w+)"?:\s*(?P<value>.*?)\s*')
_STANDARD_CDI_DIRS = ("/etc/cdi", "/var/run/cdi")


@dataclass(frozen=True)
class Container:
    """A container that is the toolkit's own, or that runs."""

    id: str
    name: str
    image_id: str | Unknown
    image: str
    state: str
    started: str | Unknown
    mode: Literal["cdi", "runtime", "legacy", "devices"] | None  # how it uses GPUs, if it does
    deployment: int | Unknown = ABSENT  # of our label
    began: int | Unknown = ABSENT  # its process: hundredths of a second since boot


def parse_docker(sections: Sections, containers: Sequence[Container]) -> Docker:
    """Return what the node says about its container engine."""
    path = sections.get("docker.path")
    client = sections.value("docker.path", "docker")
    version = _document(sections, "docker.version")
    info = _document(sections, "docker.info")
    # Newer clients say their version with what they say about the engine, and are not asked again.
    client_version = _text(_get(info, "ClientInfo", "Version")) or _get(
        version, "Client", "Version"
    )
    server_version = _server_version(sections, version, info)
    if isinstance(server_version, Unknown):
        # Without its daemon the client prints zeros and empty texts: they say nothing.
        info = server_version
    cdi_dirs = tuple(_texts(_get(info, "CDISpecDirs")))
    runtime = sections.lines("nvidia.runtime-config", "nvidia")
    return Docker(
        client=fields.text("Docker.client", client),
        client_version=fields.text("Docker.client_version", client_version),
        server_version=server_version,
        snap=any("/snap/" in line for line in (path.out if path else ())),
        rootless=any("rootless" in option for option in _texts(_get(info, "SecurityOptions"))),
        storage_driver=fields.text("Docker.storage_driver", _of(info, "Driver")),
        root_dir=fields.text("Docker.root_dir", _of(info, "DockerRootDir")),
        image_store_dir=_image_store_dir(sections, info),
        runtimes=tuple(sorted(_texts(_get(info, "Runtimes")))),
        cgroup_driver=fields.text("Docker.cgroup_driver", _of(info, "CgroupDriver")),
        cgroup_version=fields.text("Docker.cgroup_version", _of(info, "CgroupVersion")),
        live_restore=fields.flag("Docker.live_restore", _of(info, "LiveRestoreEnabled")),
        cdi_dirs=cdi_dirs,
        cdi_devices=_cdi_devices(sections, cdi_dirs, info),
        images=tuple(_images(sections)),
        mirrors=tuple(_texts(_get(info, "RegistryConfig", "Mirrors"))),
        insecure=_insecure(info),
        gpu_containers=_containers_unread(sections)
        or tuple(
            GpuContainer(each.id, each.name, each.image, each.mode)
            for each in containers
            if each.mode is not None and each.state == "running"
        ),
        containers={each.name: each.state for each in containers if each.name.startswith(OURS)},
        nvidia_ctk_version=fields.text(
            "Docker.nvidia_ctk_version", sections.value("nvidia.ctk", "nvidia")
        ),
        nvidia_runtime_mode=fields.text("Docker.nvidia_runtime_mode", _runtime_mode(runtime)),
        podman_version=fields.text("Docker.podman_version", sections.value("podman", "docker")),
    )


def parse_containers(sections: Sections) -> tuple[Container, ...]:
    """Return the containers of the survey. Those that vanished while it ran are left out."""
    section = sections.get("docker.containers")
    # A tick of /proc/PID/stat is a hundredth of a second on every Linux that is supported.
    began = {each.first: each.out[1:2] for each in sections.all("container.began")}
    found = (_container(each, began) for each in _json_lines(section.out if section else ()))
    return tuple(each for each in found if each is not None)


def _containers_unread(sections: Sections) -> Unknown | None:
    """Return why it is not known which containers run; None where it is, or no daemon listens."""
    listed, shown = sections.get("docker.ps"), sections.get("docker.containers")
    if listed is not None and listed.failure is not None:
        silent = any(words in listed.message for words in _NO_DAEMON)
        return None if silent else listed.failure
    # docker inspect fails also for those that are gone since.
    if shown is not None and shown.failure is not None:
        lines = [line for line in shown.err if line.strip()]
        gone = bool(lines) and all("no such" in line.lower() for line in lines)
        return None if gone and shown.rc == 1 else shown.failure
    missing = sections.missing("docker-containers")
    return None if shown is not None or missing == ABSENT else missing


def _container(
    raw: Mapping[str, Any], began: Mapping[str | None, Sequence[str]]
) -> Container | None:
    identity = fields.text("GpuContainer.id", _text(raw.get("id")))
    name = fields.text("GpuContainer.name", _text(raw.get("name")))
    if isinstance(identity, Unknown) or isinstance(name, Unknown):
        return None
    return Container(
        id=identity,
        name=name,
        image_id=fields.text("ServiceState.container_image", _text(raw.get("image"))),
        image=_text(raw.get("image_name")) or "",
        state=_text(raw.get("state")) or "",
        started=fields.text("ServiceState.container_started", _text(raw.get("started"))),
        mode=_mode(raw),
        deployment=fields.number("ServiceState.container_deployment", _text(raw.get("deployment"))),
        began=fields.number("ServiceState.container_began", next(iter(began.get(name, ())), None)),
    )


def _mode(raw: Mapping[str, Any]) -> Literal["cdi", "runtime", "legacy", "devices"] | None:
    """Return how a container was given GPUs.

    ``--device nvidia.com/gpu=...`` is a request with the driver "cdi"; ``--gpus`` one without a
    driver (or "nvidia") and with the capability "gpu".
    """
    requests = [each for each in _items(raw.get("requests")) if isinstance(each, dict)]
    for request in requests:
        if request.get("Driver") == "cdi":
            names = _texts(request.get("DeviceIDs"))
            if any(name.startswith("nvidia.com/") for name in names):
                return "cdi"
        elif request.get("Driver") == "nvidia" or "gpu" in json.dumps(request.get("Capabilities")):
            return "legacy"
    if raw.get("runtime") == "nvidia":
        return "runtime"
    devices = [each for each in _items(raw.get("devices")) if isinstance(each, dict)]
    if any(str(each.get("PathOnHost", "")).startswith("/dev/nvidia") for each in devices):
        return "devices"
    return None


def _document(sections: Sections, name: str) -> dict[str, Any] | Unknown:
    """Return the JSON object of a section. Docker prints one also where its daemon is silent."""
    section = sections.get(name)
    if section is None:
        return sections.missing("docker")
    for document in _json_lines(section.out):
        return document
    return section.failure or Unknown("malformed", section.text[:200])


def _json_lines(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for line in lines:
        if line.lstrip().startswith("{"):
            try:
                document = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(document, dict):
                yield document


def _get(document: Any, *keys: str) -> Any:
    for key in keys:
        if isinstance(document, Unknown):
            return document
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _of(document: dict[str, Any] | Unknown, key: str) -> str | Unknown | None:
    """Return a value as Docker would print it, so that one table of forms serves all."""
    value = _get(document, key)
    if value is None or isinstance(value, str | Unknown):
        return value
    return json.dumps(value)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    """Return the texts in a list, or the keys of an object."""
    if isinstance(value, dict):
        return [key for key in value if isinstance(key, str)]
    return [each for each in _items(value) if isinstance(each, str)]


def _server_version(
    sections: Sections, version: dict[str, Any] | Unknown, info: dict[str, Any] | Unknown
) -> str | Unknown:
    """Return the daemon's version; absent where there is none, unreadable where it is silent."""
    seen = _text(_get(version, "Server", "Version")) or _text(_get(info, "ServerVersion"))
    if seen:
        return fields.text("Docker.server_version", seen)
    for name in ("docker.info", "docker.version"):
        section = sections.get(name)
        if section is None or section.failure is None:
            continue
        errors = section.message or " ".join(_texts(_get(info, "ServerErrors")))
        if any(words in errors for words in _NO_DAEMON):
            return Unknown("absent", errors[:400])
        return section.failure if section.failure == ABSENT else Unknown("unreadable", errors[:400])
    return sections.missing("docker")


def _image_store_dir(sections: Sections, info: dict[str, Any] | Unknown) -> str | Unknown:
    """Return containerd's root where Docker keeps its images there, as Docker 29 does by default.

    A containerd that dockerd started itself has its root inside Docker's.
    """
    if isinstance(info, Unknown):
        return info
    status = json.dumps(info.get("DriverStatus"))
    if "io.containerd.snapshotter" not in status:
        return ABSENT
    address = _text(_get(info, "Containerd", "Address")) or ""
    root = _text(info.get("DockerRootDir"))
    if "/docker/containerd/" in address and root:
        return f"{root}/containerd/daemon"
    section = sections.get("containerd.config")
    found = [match[1] for line in (section.out if section else ()) if (match := _ROOT.match(line))]
    return fields.text("Docker.image_store_dir", found[0] if found else CONTAINERD_ROOT)


def _insecure(info: dict[str, Any] | Unknown) -> tuple[str, ...]:
    networks = list(_texts(_get(info, "RegistryConfig", "InsecureRegistryCIDRs")))
    hosts = _get(info, "RegistryConfig", "IndexConfigs")
    if isinstance(hosts, Mapping):
        networks += [
            str(name)
            for name, one in hosts.items()
            if isinstance(one, Mapping) and one.get("Secure") is False
        ]
    return tuple(sorted(networks))


def _images(sections: Sections) -> Iterable[LocalImage]:
    section = sections.get("docker.images")
    for raw in _json_lines(section.out if section else ()):
        identity = fields.text("LocalImage.config_digest", _text(raw.get("ID")))
        repository = _text(raw.get("Repository"))
        if isinstance(identity, Unknown) or not repository:
            continue
        tag, digest = _text(raw.get("Tag")), _text(raw.get("Digest"))
        yield LocalImage(
            repository=repository,
            tag=None if tag in (None, "", _NONE) else tag,
            digest=None if digest in (None, "", _NONE) else digest,
            config_digest=identity,
        )


def _runtime_mode(lines: tuple[str, ...] | Unknown) -> str | Unknown | None:
    """Return ``mode`` of the table [nvidia-container-runtime]."""
    if isinstance(lines, Unknown):
        return lines
    table = ""
    for line in lines:
        bare = line.strip()
        if bare.startswith("["):
            table = bare.strip("[]")
        elif table == "nvidia-container-runtime" and re.match(r"mode\s*=", bare):
            return bare.partition("=")[2].strip().strip("\"'")
    return None


def _cdi_devices(
    sections: Sections, dirs: tuple[str, ...], info: dict[str, Any] | Unknown
) -> tuple[str, ...]:
    """Return the device names of the specifications that the daemon reads.

    Where it reads none (CDI is off) they are those of the standard directories.
    """
    names: list[str] = []
    for section in sections.all("cdi.spec"):
        path = section.first or ""
        if path.rpartition("/")[0] in (dirs or _STANDARD_CDI_DIRS):
            names.extend(_cdi_names(section))
    for device in _items(_get(info, "DiscoveredDevices")):
        if isinstance(device, dict) and device.get("Source") == "cdi":
            names.extend(_texts([device.get("ID")]))
    kept = (fields.text("CdiDevice.name", name) for name in names)
    return tuple(dict.fromkeys(name for name in kept if isinstance(name, str)))


def _cdi_names(section: Section) -> list[str]:
    lines = section.out[1:]
    if (section.first or "").endswith(".json"):
        try:
            document = json.loads("\n".join(lines))
        except (ValueError, RecursionError):
            return []
        names = [_text(_get(each, "name")) for each in _items(_get(document, "devices"))]
        return [f"{_text(_get(document, 'kind'))}={name}" for name in names if name]
    return _cdi_names_of_yaml(lines)


def _cdi_names_of_yaml(lines: Iterable[str]) -> list[str]:
    """Return the names in a specification of which only lines with certain keys are left.

    A device's name stands in the column of the first key of the device's list item; a deeper one
    belongs to something else. Reading the whole YAML of an 8-GPU node takes Python a third of a
    second, for each node of an inventory.
    """
    kind, names, inside, column = "", [], False, -1
    for line in lines:
        found = _YAML_KEY.fullmatch(line)
        if found is None:
            continue
        key, value = found["key"], found["value"].strip("\"'")
        at = len(found["indent"]) + len(found["item"] or "")
        if at == 0:
            inside, column = key == "devices", -1
            kind = value if key == "kind" else kind
        elif inside:
            if column < 0 and found["item"]:
                column = at
            if key == "name" and at == column:
                names.append(value)
    return [f"{kind}={name}" for name in names]
