"""Pythons, compilers and CUDA toolkits on the node."""

from __future__ import annotations

from facts import fields
from facts.records import ABSENT, Program, Toolchain, Unknown
from facts.sections import Section, Sections

CUDA_PARTS = ("bin/nvcc", "lib64/libcudart.so", "include/cuda_runtime.h")
"""What a directory must hold to serve as CUDA_HOME for compiling kernels."""


def parse_toolchain(sections: Sections) -> Toolchain:
    """Return what the part ``toolchain`` found; a program that does not run is left out."""
    ninja = sections.value("ninja", "toolchain")
    return Toolchain(
        pythons=_programs(sections, "python"),
        compilers=_programs(sections, "compiler"),
        nvccs=_programs(sections, "nvcc"),
        cuda_homes=tuple(
            _cuda_home(section) for section in sections.all("cuda-home") if section.first
        ),
        ninja=fields.text("Toolchain.ninja", ninja),
        libcuda=library(sections, "libcuda"),
        libcuda_link=library(sections, "libcuda_link"),
        libnuma=library(sections, "libnuma"),
        package_manager=fields.text(
            "Toolchain.package_manager", sections.value("package-manager", "environments")
        ),
        tools=_tools(sections),
    )


LIBRARIES = {
    "libcuda": "libcuda.so.1",
    "libcuda_link": "libcuda.so",
    "libnuma": "libnuma.so.1",
}


def library(sections: Sections, key: str) -> str | Unknown:
    """Return where the loader finds a library, by the name of its field."""
    lines = sections.lines("libraries", "environments")
    if isinstance(lines, Unknown):
        return lines
    name = f"{LIBRARIES[key]} "
    found = next((line.strip() for line in lines if line.strip().startswith(name)), "")
    return fields.text(f"Toolchain.{key}", found.removeprefix(name))


def _tools(sections: Sections) -> tuple[str, ...] | Unknown:
    lines = sections.lines("tools", "environments")
    if isinstance(lines, Unknown):
        return lines
    return tuple(line.strip() for line in lines if line.strip().startswith("/"))


def _programs(sections: Sections, name: str) -> tuple[Program, ...]:
    found: dict[str, Program] = {}
    for section in sections.all(name):
        lines = [line.strip() for line in section.out]
        if section.rc == 0 and lines and lines[0].startswith("/"):
            found.setdefault(lines[0], _program(name, lines))
    return tuple(found.values())


def _program(name: str, lines: list[str]) -> Program:
    if name == "python":
        version = fields.text("Program.version", lines[1] if len(lines) > 1 else None)
        headers = fields.text("Program.detail", lines[2] if len(lines) > 2 else None)
        return Program(lines[0], version, headers)
    said = [line for line in lines[1:] if line]
    # nvcc: "Cuda compilation tools, release 13.0, V13.0.88"; compilers say it in their first line.
    line = next((line for line in said if "release" in line), None) if name == "nvcc" else None
    return Program(lines[0], fields.text("Program.version", line or (said[0] if said else None)))


def _cuda_home(section: Section) -> Program:
    path, *lines = (line.strip() for line in section.out if line)
    version = next((line.partition(" ")[2] for line in lines if line.startswith("version ")), None)
    missing = [part for part in CUDA_PARTS if part not in lines]
    missing += [line.partition(" ")[2] for line in lines if line.startswith("lacks ")]
    detail: str | Unknown = f"no {', no '.join(missing)}" if missing else ABSENT
    return Program(path, fields.text("Program.version", version), detail)
