"""What compiles in an environment: what of it is missing or does not fit, each in one sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plans.canary import mapping
from plans.refusals import Refusal


@dataclass(frozen=True)
class Mend:
    """The commands that mend an environment."""

    directory: str
    python: str  # minor version

    @property
    def apply(self) -> str:
        """Make what the survey finds missing; where that is not enough, all of it."""
        return f"sglang-node apply looks at it again and mends it; else: {self.anew}"

    @property
    def anew(self) -> str:
        """Make all of it anew."""
        return f"sudo rm -rf {self.directory}, then sglang-node apply makes it anew"

    def filled(self, advice: str) -> str:
        """Return an advice of the rules with what is known put in."""
        parts = {"environment": self.directory, "python": self.python, "apply": self.apply}
        for name, text in parts.items():
            advice = advice.replace(f"{{{name}}}", text)
        return advice


def broken_tools(tools: Mapping[str, Any], mend: Mend) -> list[Refusal]:
    """Return what is wrong with the tools that the canary found in the unit's environment.

    An empty list: nothing that can be seen without compiling. What was not looked at is not
    named here; the kernels that are compiled find it.
    """
    if not tools:
        return []
    home = str(tools.get("cuda_home") or "")
    of_wheels = home.startswith(f"{mend.directory}/")
    home_mends = (
        mend.apply
        if of_wheels
        else f"{home or 'CUDA_HOME'} is the host's own toolkit: install it whole, or take it off "
        "and apply, which takes the compiler of the packages"
    )
    found: list[Refusal] = []

    def refuse(code: str, seen: str, needed: str, advice: str) -> None:
        found.append(Refusal(code, seen, needed, advice))

    header, nvcc = mapping(tools.get("python_h")), mapping(tools.get("nvcc"))
    if header.get("there") is False:
        refuse(
            "PYTHON_HEADERS_MISSING",
            f"{header.get('path')} is not there",
            f"the headers of Python {mend.python}, which Triton compiles with",
            _python_mends(str(header.get("path")), mend),
        )
    if ":" in home or not home:
        refuse(
            "CUDA_HOME_WRONG",
            f"CUDA_HOME is {home!r}",
            "one directory, with bin/nvcc in it",
            "take CUDA_HOME out of the service's environment: the toolkit sets it",
        )
        return found
    if nvcc.get("there") is False or (nvcc.get("there") and nvcc.get("release") is None):
        how = "is not there" if nvcc.get("there") is False else f"does not run: {nvcc.get('said')}"
        refuse(
            "NVCC_MISSING",
            f"{nvcc.get('path')} {how}",
            "CUDA's compiler; the driver is not what is missing",
            home_mends,
        )
    _headers(tools, nvcc, home, home_mends, refuse)
    if tools.get("cudart") is False:
        refuse(
            "CUDART_NOT_LINKED",
            f"{home}/lib64/libcudart.so is not there (the linker says: cannot find -lcudart)",
            "the link that NVIDIA's wheels lack",
            home_mends,
        )
    if tools.get("libcuda", "") is None:
        refuse(
            "LIBCUDA_NOT_LINKED",
            f"no libcuda.so in {home}/lib64/stubs nor where the compiler looks (the linker says: "
            "cannot find -lcuda)",
            "a libcuda.so to link with",
            home_mends,
        )
    _compiler(tools, refuse)
    ninja = mapping(tools.get("ninja"))
    if "path" in ninja and ninja["path"] is None:
        refuse(
            "NINJA_MISSING",
            f"no ninja in {tools.get('path')}",
            "ninja in the unit's PATH",
            f"ninja is one of the environment's packages: {mend.apply}",
        )
    return found


def _python_mends(path: str, mend: Mend) -> str:
    if path.startswith("/usr/"):
        return (
            f"sudo apt-get install -y python{mend.python}-dev "
            f"(RHEL family: sudo dnf install -y python{mend.python}-devel)"
        )
    return mend.apply


def _headers(
    tools: Mapping[str, Any], nvcc: Mapping[str, Any], home: str, mends: str, refuse: Any
) -> None:
    headers, release = tools.get("headers"), nvcc.get("release")
    if "headers" in tools and headers is None:
        refuse(
            "CUDA_HEADERS_MISSING",
            f"{home}/include/cuda_runtime_api.h is not there",
            "the headers of CUDA in CUDA_HOME/include",
            mends,
        )
    elif release and headers and release != headers:
        refuse(
            "CUDA_COMPILER_MISMATCH",
            f"nvcc is of CUDA {release} and the headers are of CUDA {headers}, in {home}",
            "nvcc and headers of one CUDA release: a mix fails for kernels that are not compiled "
            "yet, however well the others run",
            mends,
        )


def _compiler(tools: Mapping[str, Any], refuse: Any) -> None:
    cxx = mapping(tools.get("cxx"))
    absent = [
        name
        for name, path in ((cxx.get("name"), cxx.get("path", "")), ("gcc", tools.get("cc", "")))
        if path is None
    ]
    if absent:
        refuse(
            "CXX_MISSING",
            f"no {' and no '.join(map(str, absent))} in {tools.get('path')}",
            "a C++ compiler in the unit's PATH",
            "sudo apt-get install -y g++ (RHEL family: sudo dnf install -y gcc-c++)",
        )
    newest, version = tools.get("newest_gcc"), re.match(r"\d+", str(cxx.get("version") or ""))
    if newest and version and cxx.get("gnu") and int(version.group()) > int(newest):
        refuse(
            "COMPILER_UNFIT",
            f"{cxx.get('path')} is g++ {cxx.get('version')}",
            f"g++ {newest} or older for this nvcc",
            f"sudo apt-get install -y g++-{newest}, then apply: the plan takes one that fits, "
            "wherever it is in PATH; or runtime: image, which brings its own compiler",
        )
