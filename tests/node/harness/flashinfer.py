"""An index laid out as FlashInfer's own, over small stand-ins.

The real wheels (110 to 295 MB of compiled kernels for each architecture) cannot be had where these
tests run. These have the real names, versions and module, and no kernel.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from .wheel_files import write_wheel

VERSIONS = ("0.7.1", "0.7.2")
LABELS = ("cu129", "cu130", "cu134")
PROVIDERS = ("sm80", "sm89", "sm90a", "sm100a", "sm103a", "sm110a", "sm120f", "sm121a")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64")

# FlashInfer asks the module for its version and for the providers that are installed.
SHIM = '''\
"""Stands for the real package, which holds no kernels either: it finds the providers."""

import importlib.metadata
import pathlib
import types

__version__ = "{version}"


def get_jit_cache_providers():
    found = []
    for one in importlib.metadata.distributions():
        name = one.metadata["Name"]
        if name.startswith("flashinfer-jit-cache-"):
            found.append(
                types.SimpleNamespace(
                    provider_id=name.rpartition("-")[2],
                    distribution=name,
                    version=one.version,
                    jit_cache_dir=str(pathlib.Path(__file__).parent / "none"),
                    cuda_architectures=(),
                    modules=(),
                )
            )
    return found
'''

# A reader of the index may refuse a wheel that is as good as empty.
NOTE = "A stand-in: the kernels of the real wheel cannot be had here.\n" * 40


def write(folder: Path) -> None:
    """Write the index: `folder`/LABEL/PACKAGE/ for the kernels, `folder`/flashinfer-cubin/."""
    for version in VERSIONS:
        for label in LABELS:
            full = f"{version}+{label}"
            wheels = folder / label / "files"
            wheels.mkdir(parents=True, exist_ok=True)
            shim = {"flashinfer_jit_cache/__init__.py": SHIM.format(version=full)}
            write_wheel(wheels, "flashinfer-jit-cache", full, shim)
            for provider in PROVIDERS:
                for platform in PLATFORMS:
                    write_wheel(
                        wheels,
                        f"flashinfer-jit-cache-{provider}",
                        full,
                        {f"flashinfer_jit_cache_{provider}/NOTE": NOTE},
                        f"py3-none-{platform}",
                    )
        cubins = folder / "files"
        cubins.mkdir(exist_ok=True)
        cubin = {"__init__.py": f'__version__ = "{version}"\n', "NOTE": NOTE}
        named = {f"flashinfer_cubin/{file}": text for file, text in cubin.items()}
        write_wheel(cubins, "flashinfer-cubin", version, named)
    for place in (folder, *(folder / label for label in LABELS)):
        _pages(place)


def _pages(folder: Path) -> None:
    """One plain page of links for each package, as the real index has: a hash and no size."""
    for wheel in sorted((folder / "files").glob("*.whl")):
        name = wheel.name.partition("-")[0].replace("_", "-")
        page = folder / name / "index.html"
        page.parent.mkdir(exist_ok=True)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        link = wheel.name.replace("+", "%2B")
        with open(page, "a") as out:
            out.write(f'<a href="../files/{link}#sha256={digest}">{wheel.name}</a><br>\n')
