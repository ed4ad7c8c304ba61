"""The machine and its operating system."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from facts import fields
from facts.parsers.nvidia import is_vgpu_host
from facts.records import ABSENT, Host, Unknown
from facts.sections import Sections


def parse_host(sections: Sections) -> Host:
    """Return what the part ``host`` says."""
    uname = _words(sections.value("uname", "host"), 3)
    release = _assignments(sections.lines("os-release", "host"))
    dgx = _assignments(sections.lines("dgx-release", "host"))
    memory = _meminfo(sections.lines("meminfo", "host"))
    user = _lines(sections.lines("user", "host"))
    platform = _lines(sections.lines("platform", "host"))
    tegra_release = next((line for line in platform if line.startswith("tegra-release ")), None)
    uid = fields.number("Host.uid", _nth(user, 0))
    return Host(
        architecture=fields.text("Host.architecture", _nth(uname, 2)),
        kernel=fields.text("Host.kernel", _nth(uname, 1)),
        os_id=fields.text("Host.os_id", _of(release, "ID")),
        os_version=fields.text("Host.os_version", _of(release, "VERSION_ID")),
        os_name=fields.text("Host.os_name", _of(release, "PRETTY_NAME")),
        os_like=tuple(_value(release, "ID_LIKE").split()),
        dgx_version=fields.text(
            "Host.dgx_version",
            _value(dgx, "DGX_OTA_VERSION") or _of(dgx, "DGX_SWBUILD_VERSION"),
        ),
        glibc=fields.text("Host.glibc", sections.value("glibc", "host")),
        boot_id=fields.text("Host.boot_id", sections.value("boot-id", "host")),
        wsl="dxg" in platform or "microsoft" in str(_nth(uname, 1)).lower(),
        tegra=tegra_release is not None
        or any(line.startswith("compatible nvidia,tegra") for line in platform),
        l4t_major=fields.number(
            "Host.l4t_major", tegra_release.partition(" ")[2] if tegra_release else None
        ),
        vgpu_host=is_vgpu_host(sections),
        memory_total_bytes=fields.number("Host.memory_total_bytes", _of(memory, "MemTotal")),
        memory_available_bytes=fields.number(
            "Host.memory_available_bytes", _of(memory, "MemAvailable")
        ),
        memory_cached_bytes=fields.number("Host.memory_cached_bytes", _of(memory, "Cached")),
        swap_total_bytes=fields.number("Host.swap_total_bytes", _of(memory, "SwapTotal")),
        uid=uid,
        user=fields.text("Host.user", _nth(user, 1)),
        can_sudo=_can_sudo(sections, uid),
        http_client=fields.text("Host.http_client", sections.value("http-client", "host")),
        selinux=fields.text("Host.selinux", sections.value("selinux", "host")),
        time_epoch=fields.number("Host.time_epoch", sections.value("clock", "host")),
    )


def _lines(lines: tuple[str, ...] | Unknown) -> tuple[str, ...]:
    return () if isinstance(lines, Unknown) else lines


def _words(line: str | Unknown, count: int) -> tuple[str, ...] | Unknown:
    if isinstance(line, Unknown):
        return line
    words = tuple(line.split())
    return words if len(words) == count else Unknown("malformed", line[:200])


def _nth(words: tuple[str, ...] | Unknown, index: int) -> str | Unknown | None:
    if isinstance(words, Unknown):
        return words
    return words[index] if index < len(words) else None


def _of(values: Mapping[str, str] | Unknown, key: str) -> str | Unknown | None:
    return values if isinstance(values, Unknown) else values.get(key)


def _value(values: Mapping[str, str] | Unknown, key: str) -> str:
    value = _of(values, key)
    return value if isinstance(value, str) else ""


def _assignments(lines: tuple[str, ...] | Unknown) -> dict[str, str] | Unknown:
    """Return the variables of a file in os-release's form: shell assignments, nothing else.

    The last of several counts: /etc/dgx-release gains a block with every update.
    """
    if isinstance(lines, Unknown):
        return lines
    values = {}
    for line in lines:
        key, separator, value = line.strip().partition("=")
        if not separator or key.startswith("#"):
            continue
        try:
            values[key] = " ".join(shlex.split(value))
        except ValueError:  # an unclosed quote
            values[key] = value.strip("\"'")
    return values


def _meminfo(lines: tuple[str, ...] | Unknown) -> dict[str, str] | Unknown:
    return lines if isinstance(lines, Unknown) else {line.split(":")[0]: line for line in lines}


def _can_sudo(sections: Sections, uid: int | Unknown) -> bool | Unknown:
    if uid == 0:
        return True
    section = sections.get("sudo")
    if section is None:
        return sections.missing("host")
    if section.rc == 0:
        return True
    failure = section.failure
    return ABSENT if failure == ABSENT else False
