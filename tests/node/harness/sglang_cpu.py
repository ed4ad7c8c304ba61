"""The real SGLang server for machines without a GPU, and a tiny model for it to serve.

The environment's dependencies are made once; each SGLang version is a directory of its own that
goes over them, so that a second version costs megabytes and not gigabytes.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from .cache import make_once, run
from .wheels import PYTHON, REQUIREMENTS, STUBS, WITHOUT_DEPENDENCIES, wheels

HERE = Path(__file__).parent


# Where the environment lies on a node or in an image, whatever the cache directory is.
HOME = "/opt/sglang"
SITE = "lib/python3.11/site-packages"


def _stamp(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def environment(cache: Path) -> Path:
    """A virtual environment with all but SGLang itself, made to be used at `/opt/sglang`."""
    source = wheels(cache)

    def make(beside: Path) -> None:
        run(PYTHON, "-m", "venv", beside)
        pip: list[str | Path] = [
            beside / "bin/python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-cache-dir",
        ]
        pip += ["--no-deps", "--no-index", "--find-links", source]
        run(*pip, "--requirement", REQUIREMENTS, *WITHOUT_DEPENDENCIES, "setuptools")
        for name, stub in STUBS.items():
            package = beside / SITE / name
            package.mkdir()
            shutil.copy(stub, package / "__init__.py")
        _move_home(beside, beside)

    stamp = _stamp(REQUIREMENTS, *STUBS.values()) + " ".join(WITHOUT_DEPENDENCIES)
    return make_once(cache / "sglang" / "environment", make, stamp)


def server(cache: Path, version: str) -> Path:
    """SGLang `version` alone: a directory with `bin` and `site-packages`, to go over the rest."""
    base = environment(cache)

    def make(beside: Path) -> None:
        target = beside / SITE
        run(
            *(base / "bin/python", "-m", "pip", "install", "--quiet", "--no-cache-dir"),
            *("--no-deps", "--no-index", "--find-links", wheels(cache)),
            *("--target", target, f"sglang=={version}"),
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

    # Another model stands beside this one: nodes of another checkout may still be reading it.
    stamp = _stamp(HERE / "tiny_model.py")
    return make_once(cache / "models" / f"tiny-{stamp[:8]}", make, stamp)


def _move_home(folder: Path, built_as: Path) -> None:
    """Let the scripts in `folder`/bin name /opt/sglang where they name `built_as`."""
    for script in (folder / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        text = script.read_bytes()
        moved = text.replace(str(built_as).encode(), HOME.encode())
        if moved != text:
            script.write_bytes(moved)
