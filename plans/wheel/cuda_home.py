"""Which CUDA toolkit a wheel runtime compiles its kernels with, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from facts.records import Program, Survey, known
from plans import paths
from plans.wheel.compilers import cuda_of
from releases.wheels.records import WheelLock


@dataclass(frozen=True)
class CudaHome:
    """The CUDA toolkit that kernels are compiled with."""

    path: str
    source: Literal["host", "wheels"]
    reason: str


def cuda_home(key: str, lock: WheelLock, survey: Survey) -> CudaHome | None:
    """Return the toolkit for an environment: the host's own where it is whole and of the lock's
    CUDA release, else the tree that the wheels bring; None for a lock without a compiler.

    Both halves of a mix (nvcc of one release, headers of another) are refused by what includes
    CUB, so a host's toolkit of another minor version is none.
    """
    cuda = cuda_of(lock)
    if cuda is None:
        return None
    why_not = []
    # A path with a version in it stays what it is when the host gets another toolkit.
    for one in sorted(
        survey.toolchain.cuda_homes, key=lambda home: ("-" not in home.path, home.path)
    ):
        version = _version(one, survey)
        if known(one.detail):
            why_not.append(f"{one.path} has {one.detail}")
        elif version is None:
            why_not.append(f"{one.path} does not say its version")
        elif version != cuda:
            why_not.append(f"{one.path} is CUDA {version}")
        else:
            return CudaHome(
                one.path, "host", f"CUDA_HOME {one.path}: the host's own CUDA {cuda}, whole"
            )
    seen = "; ".join(why_not) or "the host has no CUDA toolkit"
    return CudaHome(
        wheels_tree(key, lock, cuda),
        "wheels",
        f"CUDA_HOME from the wheels, CUDA {cuda}, its links repaired: {seen}",
    )


def wheels_tree(key: str, lock: WheelLock, cuda: str) -> str:
    """Return where the wheels of NVIDIA's compiler put their tree within an environment."""
    site = f"{paths.environment(key)}/lib/python{lock.python}/site-packages"
    return f"{site}/nvidia/cu{cuda.split('.')[0]}"


def _version(home: Program, survey: Survey) -> str | None:
    version = home.version
    if not known(version):
        nvcc = next((n for n in survey.toolchain.nvccs if n.path == f"{home.path}/bin/nvcc"), None)
        version = nvcc.version if nvcc is not None else version
    return ".".join(version.split(".")[:2]) if known(version) else None
