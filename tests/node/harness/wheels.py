"""Real wheels from the machine's own index, kept in a directory, and the index and locks of them.

What nodes install in these tests comes from here. The locks are marked as for tests: SGLang on
its CPU device with a CPU build of torch, and with stand-ins for three packages that need a GPU.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

from packaging.utils import canonicalize_name, parse_wheel_filename

from releases.wheels.records import Package, WheelLock
from releases.wheels.text import write_lock

from . import flashinfer
from .cache import HarnessError, make_once, run
from .wheel_files import metadata, without, write_wheel

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "sglang_cpu.txt"
VERSIONS = ("0.5.22", "0.5.23")

# Debian 12's own Python: the one that nodes and images of the tree "bookworm" have at this path.
PYTHON = Path("/usr/bin/python3.11")

# Compiled packages whose own dependencies (CUDA builds) are not wanted; versions are SGLang's pins.
WITHOUT_DEPENDENCIES = ("triton==3.7.1", "apache-tvm-ffi==0.1.11", "xgrammar==0.2.7")

STUBS = {
    "torchvision": HERE / "stub_open.py",
    "torchaudio": HERE / "stub_open.py",
    "sgl_kernel": HERE / "stub_kernels.py",
}

# Those stand-ins as wheels: package and version (SGLang's own pins), and the module that it has.
STUB_WHEELS = {
    ("torchvision", "0.28.0"): "torchvision",
    ("torchaudio", "2.11.0"): "torchaudio",
    ("sglang-kernel", "0.4.10"): "sgl_kernel",
}

UV = "0.13.9"

# What a node's uv and pip bring by themselves elsewhere.
TOOLS = (f"uv=={UV}", "setuptools==84.2.1")

# The compiler of CUDA 13.0 as the locks for GPUs have it.
COMPILER = (
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-runtime==13.0.96",
)

# FlashInfer with the least that its kernels `norm` and `page` compile with, beside the compiler.
KERNELS = ("flashinfer-python==0.7.2", "nvidia-ml-py==13.615.71", "tabulate==0.10.0")

# Of these a compiler only reads the headers. Their libraries (0.7 GB) only ever serve a GPU: the
# harness leaves them out of the wheels.
HEADERS = ("nvidia-cublas==13.1.1.3", "nvidia-curand==10.4.0.35")

# The one lock that can compile kernels; it is of the newest version.
COMPILING = "compile"


def wheels(cache: Path) -> Path:
    """The directory of all wheels, downloaded once by the machine's own pip as it is set up."""
    if not PYTHON.exists():
        raise HarnessError(f"{PYTHON} is missing: install Debian 12's python3.11 and python3-venv")
    cpu = [line for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    cpu = list(dict.fromkeys(cpu))
    groups = [
        cpu[0::2],
        cpu[1::2],
        [*WITHOUT_DEPENDENCIES, *TOOLS, *COMPILER, *KERNELS],
        *([f"sglang=={version}"] for version in VERSIONS),
    ]

    def make(beside: Path) -> None:
        venv, full = beside / "venv", beside / "full"
        run(PYTHON, "-m", "venv", venv)
        download: list[str | Path] = [
            venv / "bin/python",
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-cache-dir",
        ]
        download += ["--no-deps", "--only-binary", ":all:", "--dest"]
        with ThreadPoolExecutor() as pool:
            tasks = [pool.submit(run, *download, beside, *group) for group in groups]
            tasks.append(pool.submit(run, *download, full, *HEADERS))
            for task in tasks:
                task.result()
        for wheel in full.iterdir():
            without(wheel, beside, lambda path: ".so" in Path(path).suffixes)
        run("rm", "-r", full, venv)
        (torch,) = beside.glob("torch-*.whl")
        if "+cpu-" not in torch.name:
            raise HarnessError(
                f"pip took {torch.name}: point pip at an index of CPU builds "
                "(PIP_INDEX_URL or pip's configuration) and run again"
            )
        for (name, version), module in STUB_WHEELS.items():
            write_wheel(beside, name, version, {f"{module}/__init__.py": STUBS[module].read_text()})

    sources = b"".join(file.read_bytes() for file in sorted(set(STUBS.values())))
    stamp = json.dumps([groups, HEADERS, hashlib.sha256(sources).hexdigest()])
    return make_once(cache / "wheels", make, stamp)


def index(cache: Path) -> Path:
    """A directory with an index of the wheels, FlashInfer's, and the locks: all made once.

    `simple/` is a package index as pip and uv read it, over `../files` (the wheels' directory);
    `flashinfer/` the same with its own files; `locks/NAME.txt` one lock for each name of
    `LOCKS`.
    """
    source = wheels(cache)

    def make(beside: Path) -> None:
        files = sorted(source.glob("*.whl"))
        pages(beside / "simple", files, beside / "metadata", "../../files")
        flashinfer.write(beside / "flashinfer")
        hashes = json.loads((beside / "metadata/hashes.json").read_text())
        (beside / "locks").mkdir()
        for name, text in _locks(files, hashes).items():
            (beside / f"locks/{name}.txt").write_text(text)

    made_by = "".join(
        (HERE / file).read_text() for file in ("wheels.py", "wheel_files.py", "flashinfer.py")
    )
    stamp = (source.parent / f".{source.name}.stamp").read_text()
    return make_once(cache / "index", make, stamp + hashlib.sha256(made_by.encode()).hexdigest())


def pages(folder: Path, files: Iterable[Path], beside_them: Path, where: str) -> None:
    """Write an index (PEP 503, with PEP 658's metadata) of `files`, which are served at `where`.

    `beside_them` gets `FILE.metadata` for each, and `hashes.json`.
    """
    beside_them.mkdir(parents=True)
    hashes = {}
    names: dict[str, list[str]] = {}
    for file in files:
        with open(file, "rb") as content:
            hashes[file.name] = hashlib.file_digest(content, "sha256").hexdigest()
        about = metadata(file)
        (beside_them / f"{file.name}.metadata").write_bytes(about)
        requires = re.search(rb"^Requires-Python: (.*)$", about, re.MULTILINE)
        python = requires[1].decode().strip() if requires else ""
        asks = f' data-requires-python="{_escaped(python)}"' if python else ""
        names.setdefault(_name(file), []).append(
            f'<a href="{where}/{quote(file.name)}#sha256={hashes[file.name]}"{asks}'
            f' data-core-metadata="sha256={hashlib.sha256(about).hexdigest()}">{file.name}</a><br>'
        )
    for name, links in names.items():
        page = folder / name / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text("<!DOCTYPE html>\n" + "\n".join(links) + "\n")
    (beside_them / "hashes.json").write_text(json.dumps(hashes))


def _name(file: Path) -> str:
    return str(parse_wheel_filename(file.name)[0])


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _locks(files: list[Path], hashes: dict[str, str]) -> dict[str, str]:
    """The text of each lock by its name."""
    compiling = {canonicalize_name(pin.partition("==")[0]) for pin in (*COMPILER, *KERNELS)}
    compiling |= {canonicalize_name(pin.partition("==")[0]) for pin in HEADERS}
    plain = [f for f in files if _name(f) not in {*compiling, "uv", "sglang"}]
    server = {
        version: f for f in files for version in VERSIONS if f.name.startswith(f"sglang-{version}-")
    }
    more = [f for f in files if _name(f) in compiling]
    made = {version: _lock(version, [*plain, server[version]], hashes) for version in VERSIONS}
    newest = VERSIONS[-1]
    made[COMPILING] = _lock(newest, [*plain, server[newest], *more], hashes)
    return made


def _lock(release: str, files: list[Path], hashes: dict[str, str]) -> str:
    packages = sorted(
        (
            Package(
                name=_name(file),
                version=str(parse_wheel_filename(file.name)[1]),
                hashes=(f"sha256:{hashes[file.name]}",),
                file=file.name,
                size=file.stat().st_size,
            )
            for file in files
        ),
        key=lambda package: package.name,
    )
    lock = WheelLock(
        release=release,
        architecture="x86_64",
        python="3.11",
        glibc="2.34",
        device="cpu",
        as_of="2026-11-30T00:00:00Z",
        uv=UV,
        packages=tuple(packages),
    )
    first, rest = write_lock(lock).split("\n", 1)
    return f"{first}\n# For tests: stand-ins for {', '.join(n for n, _ in STUB_WHEELS)}.\n{rest}"
