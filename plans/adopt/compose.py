"""A compose file's services, each read into a container."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

import yaml

from plans.adopt.data import lost_option
from plans.adopt.docker_run import of_cdi, read_ports
from plans.adopt.records import Container, Gpus, Mount, Note, NotReadable, Port
from plans.adopt.shell import filled
from plans.adopt.sizes import size_bytes
from plans.sources import secret_variable

_READ = {
    "image", "command", "entrypoint", "environment", "volumes", "ports", "network_mode", "ipc",
    "shm_size", "ulimits", "deploy", "gpus", "devices", "runtime", "privileged", "restart", "init",
    "container_name", "env_file",
}  # fmt: skip
_IGNORED = {
    "labels", "logging", "hostname", "stop_grace_period", "stop_signal", "stdin_open", "tty",
    "pull_policy", "platform", "profiles", "networks", "expose", "read_only", "scale",
}  # fmt: skip
_OPTIONS = {
    "cap_add": "cap-add", "cap_drop": "cap-drop", "security_opt": "security-opt",
    "working_dir": "workdir", "extra_hosts": "add-host", "mem_limit": "memory", "cpuset":
    "cpuset-cpus", "sysctls": "sysctl", "cgroup_parent": "cgroup-parent",
}  # fmt: skip


def read_compose(
    text: str, directory: str | None = None, environment: Mapping[str, str] | None = None
) -> dict[str, Container]:
    """Return the containers of a compose file's services, by name.

    ``directory`` is where the file lies on its node, for relative paths; ``environment`` what
    its ``.env`` says. Raises NotReadable where it is no compose file.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise NotReadable(f"is no YAML: {str(error).splitlines()[0]}") from None
    services = document.get("services") if isinstance(document, Mapping) else None
    if not isinstance(services, Mapping):
        raise NotReadable("has no services: it is no compose file")
    known = dict(environment or {})
    return {
        str(name): _container(one, directory, known)
        for name, one in services.items()
        if isinstance(one, Mapping)
    }


def _container(
    raw: Mapping[str, Any], directory: str | None, known: Mapping[str, str]
) -> Container:
    unknown: set[str] = set()

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            text, missing = filled(value, known)
            unknown.update(missing)
            return text
        if isinstance(value, list):
            return [fill(one) for one in value]
        if isinstance(value, Mapping):
            return {key: fill(one) for key, one in value.items()}
        return value

    service = fill(raw)
    lost: list[Note] = []
    devices = [str(one) for one in _items(service.get("devices"))]
    cdi = [one.partition("=")[2] for one in devices if one.startswith("nvidia.com/gpu=")]
    other = [one for one in devices if "nvidia" not in one]
    lost += [lost_option("device", f"devices: {one}") for one in other]
    if service.get("privileged") is True:
        lost.append(lost_option("privileged", "privileged: true"))
    if service.get("entrypoint"):
        lost.append(lost_option("entrypoint", "entrypoint"))
    for name in service:
        if name not in _READ | _IGNORED and not str(name).startswith("x-"):
            lost.append(lost_option(_OPTIONS.get(name, str(name)), str(name)))
    if service.get("env_file"):
        lost.append(lost_option("env-file", "env_file"))
    environment, taken = _environment(service.get("environment"))
    lost += taken
    for name in sorted(unknown):
        then = (
            "export it where you run apply"
            if secret_variable(name)
            else "write its value into the entry"
        )
        why = f"the file takes it from outside (.env or the shell): {then}"
        lost.append(Note(f"${{{name}}} of the compose file", why))
    return Container(
        image=str(service.get("image") or ""),
        words=(*_words(service.get("entrypoint")), *_words(service.get("command"))),
        environment=environment,
        mounts=tuple(
            filter(None, (_mount(one, directory) for one in _items(service.get("volumes"))))
        ),
        ports=tuple(port for one in _items(service.get("ports")) for port in _ports(one)),
        network=str(service.get("network_mode") or "bridge"),
        shm_bytes=size_bytes(service["shm_size"]) if service.get("shm_size") else None,
        ulimits=_limits(service.get("ulimits")),
        gpus=of_cdi(cdi) or _gpus(service),
        rdma=any(one.startswith("/dev/infiniband") for one in other)
        or service.get("privileged") is True,
        restart=str(service.get("restart") or "no"),
        init=service.get("init") is True,
        lost=tuple(lost),
    )


def _gpus(service: Mapping[str, Any]) -> Gpus:
    if service.get("gpus") == "all":
        return "all"
    resources = _mapping(_mapping(service.get("deploy")).get("resources"))
    requests = _items(_mapping(resources.get("reservations")).get("devices"))
    for one in map(_mapping, [*requests, *_items(service.get("gpus"))]):
        ids = [str(each) for each in _items(one.get("device_ids"))]
        if ids:
            return tuple(ids)
        count = one.get("count", "all")
        return "all" if count in ("all", -1) else int(count) if str(count).isdigit() else None
    return None


def _environment(value: Any) -> tuple[dict[str, str], list[Note]]:
    if isinstance(value, Mapping):
        pairs = {str(k): v for k, v in value.items()}
    else:
        texts = [str(one).partition("=") for one in _items(value)]
        pairs = {name: text if equals else None for name, equals, text in texts}
    why = "compose took it from the shell it was called in: write its value"
    pairs = {k: "" if v is None and secret_variable(k) else v for k, v in pairs.items()}
    lost = [Note(f"variable {name}", why) for name, text in pairs.items() if text is None]
    return {k: _text(v) for k, v in pairs.items() if v is not None}, lost


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return shlex.split(value)
    return [_text(one) for one in _items(value)]


def _mount(value: Any, directory: str | None) -> Mount | None:
    if isinstance(value, Mapping):
        source, target = value.get("source"), value.get("target")
        if not isinstance(source, str) or not isinstance(target, str):
            return None
        return Mount(_placed(source, directory), target, value.get("read_only") is True)
    source, _, rest = str(value).partition(":")
    target, _, options = rest.partition(":")
    return Mount(_placed(source, directory), target or source, "ro" in options.split(","))


def _placed(source: str, directory: str | None) -> str:
    if source.startswith(".") and directory:
        parts: list[str] = []
        for part in PurePosixPath(directory, source).parts:
            parts = parts[:-1] if part == ".." else [*parts, part]
        return str(PurePosixPath(*parts))
    return source


def _ports(value: Any) -> Iterable[Port]:
    if isinstance(value, Mapping):
        inside, outside = str(value.get("target", "")), str(value.get("published", ""))
        if inside.isdigit() and outside.isdigit():
            yield Port(int(inside), int(outside), str(value.get("host_ip") or ""))
        return
    yield from read_ports(str(value))


def _limits(value: Any) -> dict[str, int]:
    found = {}
    for name, limit in _mapping(value).items():
        hard = limit.get("hard") if isinstance(limit, Mapping) else limit
        if isinstance(hard, int) and not isinstance(hard, bool):
            found[str(name)] = hard
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else []
