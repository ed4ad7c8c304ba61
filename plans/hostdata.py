"""What ``plans/data/hosts.yaml`` says: supported systems, limits, failures, commands."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from facts.records import Host, known
from plans.rules import version_of
from releases.yaml_text import read_yaml

Runtime = Literal["image", "wheel"]
"""How a release gets onto a node: as a container's image, or as Python packages."""

CommandName = Literal["install_driver", "install_toolkit", "install_docker", "install_curl"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Number(_Data):
    """A number that decides, why it is that, and where it stands."""

    value: str
    why: str
    source: str


class System(_Data):
    """A supported operating system."""

    id: str
    versions: tuple[str, ...]
    family: Literal["apt", "dnf"]
    source: str


class Dgx(_Data):
    """The supported versions of DGX OS."""

    versions: tuple[str, ...]
    source: str


class SmiFailure(_Data):
    """A way in which nvidia-smi fails: its exit codes, or a text in its output."""

    id: str
    exit_codes: tuple[int, ...]
    text: str
    code: str
    needed: str
    advice: str
    source: str


class HostData(_Data):
    """The whole file."""

    systems: tuple[System, ...]
    dgx: Dgx
    architectures: tuple[str, ...]
    numbers: Mapping[str, Number]
    runtime_parts: Mapping[Runtime, tuple[str, ...]]
    smi: tuple[SmiFailure, ...]
    smi_harmless: tuple[int, ...]
    smi_harmless_source: str
    recovery_fine: tuple[str, ...]
    recovery_source: str
    commands: Mapping[CommandName, Mapping[str, str]]


@cache
def host_data() -> HostData:
    """Return what the file says, validated."""
    text = Path(__file__).with_name("data").joinpath("hosts.yaml").read_text(encoding="utf-8")
    return HostData.model_validate(read_yaml(text))


def limit(name: str) -> str:
    """Return a number of the file as it is written there, such as ``DOCKER``: ``"20.10"``."""
    return host_data().numbers[name].value


def at_least(version: str, wanted: str) -> bool:
    """Say whether a version reaches another; one without numbers doesn't."""
    found, least = version_of(version), version_of(wanted)
    return found is not None and least is not None and found >= least


def command(name: CommandName, host: Host) -> str:
    """Return the command that mends one thing on this host, or a link where none is known."""
    known_ones = host_data().commands[name]
    return next(known_ones[key] for key in _keys(host) if key in known_ones)


def commands(host: Host) -> dict[str, str]:
    """Return every command for this host, by name."""
    return {name: command(name, host) for name in host_data().commands}


def _keys(host: Host) -> tuple[str, ...]:
    keys = []
    if host.wsl:
        keys.append("wsl")
    if known(host.dgx_version):
        keys.append("dgx")
    ids = [host.os_id] if known(host.os_id) else []
    ids += host.os_like
    keys += ids
    keys += [system.family for one in ids for system in host_data().systems if system.id == one]
    keys += ["dnf"] if "fedora" in ids else []
    return (*keys, "other")
