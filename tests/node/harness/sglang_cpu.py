"""The real SGLang server for machines without a GPU, and a tiny model for it to serve.

The environment's dependencies are made once; each SGLang version is a directory of its own that
goes over them, so that a second version costs megabytes and not gigabytes.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from .cache import HarnessError, make_once, run

HERE = Path(__file__).parent
VERSIONS = ("0.5.22", "0.5.23")

# Where the environment lies on a node or in an image, whatever the cache directory is.
HOME = "/opt/sglang"
SITE = "lib/python3.11/site-packages"

# Debian 12's own Python: the one that nodes and images of the tree "bookworm" have at this path.
PYTHON = Path("/usr/bin/python3.11")

# Compiled packages whose own dependencies (CUDA builds) are not wanted; versions are SGLang's pins.
WITHOUT_DEPENDENCIES = ("triton==3.7.1", "apache-tvm-ffi==0.1.11", "xgrammar==0.2.7")

STUBS = {
    "torchvision": HERE / "stub_open.py",
    "torchaudio": HERE / "stub_open.py",
    "sgl_kernel": HERE / "stub_kernels.py",
}


def _stamp(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def environment(cache: Path) -> Path:
    """A virtual environment with all but SGLang itself, made to be used at `/opt/sglang`."""
    if not PYTHON.exists():
        raise HarnessError(f"{PYTHON} is missing: install Debian 12's python3.11 and python3-venv")

    def make(beside: Path) -> None:
        run(PYTHON, "-m", "venv", beside)
        pip = (beside / "bin/python", "-m", "pip", "install", "--quiet", "--no-cache-dir")
        run(*pip, "--requirement", HERE / "sglang_cpu.txt")
        run(*pip, "--no-deps", *WITHOUT_DEPENDENCIES)
        cuda = run(beside / "bin/python", "-c", "import torch; print(torch.version.cuda)").strip()
        if cuda != "None":
            raise HarnessError(
                f"pip installed torch for CUDA {cuda}: point pip at an index of CPU builds "
                "(PIP_INDEX_URL or pip's configuration) and run again"
            )
        for name, source in STUBS.items():
            package = beside / SITE / name
            package.mkdir()
            shutil.copy(source, package / "__init__.py")
        _move_home(beside, beside)

    stamp = _stamp(HERE / "sglang_cpu.txt", *STUBS.values()) + " ".join(WITHOUT_DEPENDENCIES)
    return make_once(cache / "sglang" / "environment", make, stamp)


def server(cache: Path, version: str) -> Path:
    """SGLang `version` alone: a directory with `bin` and `site-packages`, to go over the rest."""
    base = environment(cache)

    def make(beside: Path) -> None:
        target = beside / SITE
        run(
            *(base / "bin/python", "-m", "pip", "install", "--quiet", "--no-cache-dir"),
            *("--no-deps", "--target", target, f"sglang=={version}"),
        )
        (target / "bin").rename(beside / "bin")
        _move_home(beside, base)

    return make_once(cache / "sglang" / version, make, stamp=version)


def model(cache: Path) -> Path:
    """The tiny model's directory, readable by every user."""
    base = environment(cache)

    def make(beside: Path) -> None:
        run(base / "bin/python", HERE / "tiny_model.py", beside)
        run("chmod", "-R", "a+rX", beside)

    return make_once(cache / "models" / "tiny", make, _stamp(HERE / "tiny_model.py"))


def _move_home(folder: Path, built_as: Path) -> None:
    """Let the scripts in `folder`/bin name /opt/sglang where they name `built_as`."""
    for script in (folder / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        text = script.read_bytes()
        moved = text.replace(str(built_as).encode(), HOME.encode())
        if moved != text:
            script.write_bytes(moved)
