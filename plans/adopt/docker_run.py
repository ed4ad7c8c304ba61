"""A ``docker run`` as it was typed, read into a container."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from plans.adopt.data import adopt_data, lost_option
from plans.adopt.records import Container, Gpus, Mount, Note, NotReadable, Port
from plans.adopt.shell import ASSIGNMENT
from plans.adopt.sizes import size_bytes
from plans.sources import secret_variable


def find_run(words: Sequence[str]) -> tuple[str, ...] | None:
    """Return what follows ``docker run`` (also of Podman) among some words, or None."""
    return _run_of(words)[1]


def other_engine(words: Sequence[str]) -> str | None:
    """Return which program runs the container that some words start; None for Docker and for none."""
    engine, run = _run_of(words)
    return engine if run is not None and engine != "docker" else None


def not_docker(engine: str) -> Note:
    """Return what is said of a container that another program than Docker runs."""
    why = "the service's container is Docker's, which has images and containers of its own"
    return Note(f"{engine} run", f"{why}: the image is pulled anew")


def _run_of(words: Sequence[str]) -> tuple[str, tuple[str, ...] | None]:
    for i, word in enumerate(words):
        engine = PurePosixPath(word).name
        if engine not in ("docker", "podman", "nerdctl"):
            continue
        rest = list(words[i + 1 :])
        while rest and rest[0].startswith("-"):
            rest = rest[1:] if "=" in rest[0] else rest[2:]
        if rest[:1] == ["container"]:
            rest = rest[1:]
        if rest[:1] == ["run"]:
            return engine, tuple(rest[1:])
    return "", None


def read_run(words: Sequence[str]) -> tuple[Container, str | None]:
    """Return the container of what follows ``docker run``, and its name.

    Raises NotReadable where there is no image.
    """
    options, rest = _options(words)
    if not rest:
        raise NotReadable("docker run names no image")
    given: dict[str, list[str]] = {}
    for name, value in options:
        given.setdefault(name, []).append(value)
    lost: list[Note] = []
    environment: dict[str, str] = {}
    for text in given.get("env", ()):
        pair = ASSIGNMENT.fullmatch(text)
        if pair or secret_variable(text):
            environment[pair[1] if pair else text] = pair[2] if pair else ""
        else:
            why = "docker run took it from the shell it was typed in: write its value"
            lost.append(Note(f"variable {text}", why))
    mounts = [_volume(text) for text in given.get("volume", ())]
    for text in given.get("mount", ()):
        mount = _mount(text)
        mounts += [mount] if mount else []
        lost += [] if mount else [Note(f"--mount {text}", adopt_data().mount_otherwise)]
    entrypoint = given.get("entrypoint", [])[-1:]
    network = (given.get("network") or given.get("net") or ["bridge"])[-1]
    devices = given.get("device", [])
    cdi = tuple(one.partition("=")[2] for one in devices if one.startswith("nvidia.com/gpu="))
    fabric = [one for one in devices if one.startswith("/dev/infiniband")]
    container = Container(
        image=rest[0],
        words=(*entrypoint, *rest[1:]),
        environment=environment,
        mounts=tuple(mounts),
        ports=tuple(port for text in given.get("publish", ()) for port in read_ports(text)),
        network=network,
        shm_bytes=size_bytes(given["shm-size"][-1]) if "shm-size" in given else None,
        ulimits=dict(filter(None, map(_limit, given.get("ulimit", ())))),
        gpus=gpus_of(given["gpus"][-1]) if "gpus" in given else of_cdi(cdi),
        rdma=bool(fabric) or "privileged" in given,
        restart=(given.get("restart") or ["no"])[-1],
        init="init" in given,
        lost=(*lost, *_lost(given)),
    )
    return container, given["name"][-1] if "name" in given else None


def _options(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    data = adopt_data()
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        word = words[at]
        at += 1
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and name not in data.docker_switches:
                value = words[at] if at < len(words) else ""
                at += 1
            if not (name in data.docker_switches and value == "false"):
                found.append((name, value))
            continue
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            long = {"d": "detach", "i": "interactive", "t": "tty", "P": "publish-all", "q": "quiet"}
            if letter in data.docker_switches:
                found.append((long.get(letter, letter), ""))
                continue
            value, letters = letters.removeprefix("="), ""
            if not value:
                value = words[at] if at < len(words) else ""
                at += 1
            found.append((data.docker_short.get(letter, letter), value))
    return found, list(words[at:])


def _lost(given: dict[str, list[str]]) -> list[Note]:
    read = {
        "env", "volume", "mount", "network", "net", "publish", "shm-size", "ulimit", "gpus", "ipc",
    }  # fmt: skip
    out = []
    for name, values in given.items():
        if name in read or name in adopt_data().docker_ignored:
            continue
        for value in values:
            if name == "device" and value.startswith(("nvidia.com/gpu=", "/dev/nvidia")):
                continue
            out.append(lost_option(name, f"--{name} {value}".strip()))
    return out


def _volume(text: str) -> Mount:
    source, _, rest = text.partition(":")
    target, _, options = rest.partition(":")
    return Mount(source, target or source, "ro" in options.split(","))


def _mount(text: str) -> Mount | None:
    parts = next(csv.reader([text]), [])
    keys = {one.partition("=")[0]: one.partition("=")[2] for one in parts}
    source = keys.get("source") or keys.get("src")
    target = keys.get("target") or keys.get("destination") or keys.get("dst")
    if not source or not target:
        return None
    return Mount(source, target, any(one in ("readonly", "ro") for one in keys))


def read_ports(text: str) -> list[Port]:
    """Return the ports of ``[ADDRESS:]OUTSIDE:INSIDE[/tcp]``; those that Docker chooses are not."""
    text, _, kind = text.partition("/")
    address, _, pair = text.rpartition(":")
    if kind not in ("", "tcp") or not address:
        return []
    ip, _, outside = address.rpartition(":")
    ranges = [_range(outside), _range(pair)]
    if not all(ranges) or len(ranges[0]) != len(ranges[1]):
        return []
    return [Port(i, o, ip.strip("[]")) for o, i in zip(*ranges, strict=True)]


def _range(text: str) -> list[int]:
    found = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", text)
    if not found:
        return []
    first = int(found[1])
    last = int(found[2] or first)
    return list(range(first, last + 1)) if last - first < 100 else []


def _limit(text: str) -> tuple[str, int] | None:
    name, _, value = text.partition("=")
    hard = value.rpartition(":")[2]
    return (name, int(hard)) if re.fullmatch(r"-?[0-9]+", hard) else None


def gpus_of(text: str) -> Gpus:
    """Return what ``--gpus`` asks for: all, so many, or these."""
    parts = next(csv.reader([text.strip("'")]), [])
    for i, part in enumerate(parts):
        key, equals, value = part.partition("=")
        if key == "device":
            return (*value.split(","), *(one for one in parts[i + 1 :] if "=" not in one))
        word = value if key == "count" and equals else part
        if word in ("all", "-1"):
            return "all"
        if word.isdigit():
            return int(word)
    return None


def of_cdi(names: Sequence[str]) -> Gpus:
    """Return the GPUs of CDI device names (the part behind ``nvidia.com/gpu=``)."""
    if not names:
        return None
    return "all" if "all" in names else tuple(names)
