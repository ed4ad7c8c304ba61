"""The compilers of kernels: CUDA's among the locked packages, and the C++ one that it accepts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from facts.records import Program, Survey
from plans import paths
from plans.refusals import Refusal
from plans.rules import version_of
from plans.wheel.data import Compilers, host_needs
from releases.wheels import WheelLock

NVCC = "nvidia-cuda-nvcc"
"""The package whose presence makes a lock one with which kernels can be compiled."""

UNIT_PATH = frozenset(paths.UNIT_PATH.split(":"))

PLAIN = ("c++", "g++")
"""What SGLang, FlashInfer and nvcc look for in PATH where nothing names a compiler."""

VERSIONED = re.compile(r"(?:g|c)\+\+(?:-\d+)?")


@dataclass(frozen=True)
class Compiler:
    """Which compiler a unit uses, or that one is to be installed, or why there is none."""

    path: str | None = None  # of the one that is there and fits
    named: bool = False  # it must be named (CXX, NVCC_CCBIN), as PATH has another first
    install: bool = False  # none is there: the distribution's is installed
    refusals: tuple[Refusal, ...] = ()


def cuda_of(lock: WheelLock) -> str | None:
    """Return the CUDA release that a lock compiles with: ``13.0``; None where it cannot."""
    nvcc = lock.package(NVCC)
    return None if nvcc is None else ".".join(nvcc.version.split(".")[:2])


def compiler_of(survey: Survey, cuda: str, service: str) -> Compiler:
    """Return the compiler for kernels of one CUDA release on a node.

    Looked for where the unit looks, not where a login shell does; ``cuda`` is the lock's
    (``"13.0"``). A compiler whose version cannot be read counts as none that fits.
    """
    there = [
        one
        for one in survey.toolchain.compilers
        if str(PurePosixPath(one.path).parent) in UNIT_PATH
        and VERSIONED.fullmatch(PurePosixPath(one.path).name)
    ]
    plain = [one for one in there if PurePosixPath(one.path).name in PLAIN]
    wanted = host_needs().compilers_of(cuda)
    if wanted is None:
        # Of an operator's own lock: no range is known, and the canary compiles with what is there.
        return Compiler(path=plain[0].path) if plain else Compiler(install=True)
    if not there:
        return Compiler(install=True)
    # The linker's c++ and nvcc's g++ are asked for by name: each must fit.
    if plain and all(_fits(one, wanted) for one in plain):
        return Compiler(path=plain[0].path)
    fitting = sorted(
        (one for one in there if _fits(one, wanted)), key=lambda one: major_of(one) or 0
    )
    if fitting:
        return Compiler(path=fitting[-1].path, named=True)
    return Compiler(refusals=(_refusal(there, wanted, service),))


def environment_of(survey: Survey, cuda: str, service: str) -> dict[str, str]:
    """Return the variables that name the compiler, where the first in PATH is none that fits.

    SGLang reads CXX, FlashInfer and Triton CC as well, nvcc NVCC_CCBIN.
    """
    found = compiler_of(survey, cuda, service)
    if not found.named or found.path is None:
        return {}
    path = PurePosixPath(found.path)
    c = path.with_name(path.name.replace("g++", "gcc").replace("c++", "gcc"))
    return {"CXX": found.path, "CC": str(c), "NVCC_CCBIN": found.path}


def major_of(program: Program) -> int | None:
    """Return the major version that a compiler says it has (``"13.3.0"`` gives 13), or None."""
    version = version_of(program.version)
    return version[0] if version else None


def _fits(program: Program, wanted: Compilers) -> bool:
    major = major_of(program)
    return major is not None and wanted.gcc.least <= major <= wanted.gcc.newest


def _refusal(there: list[Program], wanted: Compilers, service: str) -> Refusal:
    seen = "; ".join(f"{one.path}: version {one.version}" for one in there)
    least, newest = wanted.gcc.least, wanted.gcc.newest
    return Refusal(
        "COMPILER_UNFIT",
        seen,
        f"GCC {least} to {newest}, which nvcc of CUDA {wanted.cuda} and SGLang's kernels take",
        f"Install one beside it (g++-{newest} or older, as the distribution has it) and plan again: "
        "it is found by its name. Or write `runtime: image`, which brings its own",
        service,
    )
