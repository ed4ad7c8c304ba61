"""The real sglang-router for the mirror: its wheel, the index's pages of it, and a lock for tests.

All that it needs is among the wheels of SGLang's own CPU environment already.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

from releases.door import ROUTER, VERSION, door_text
from releases.wheels.records import Package, WheelLock

from .cache import make_once, run
from .wheels import PYTHON, UV, pages

LOCK = "door"
"""The lock's name among the mirror's."""

# Of these the mirror has just one version each.
NEEDS = (
    "aiohappyeyeballs", "aiohttp", "aiosignal", "annotated-doc", "annotated-types", "anyio",
    "attrs", "click", "fastapi", "frozenlist", "h11", "idna", "multidict", "opentelemetry-api",
    "orjson", "propcache", "pydantic", "pydantic-core", "setproctitle", "starlette",
    "typing-extensions", "typing-inspection", "uvicorn", "yarl",
)  # fmt: skip
OWN = (f"{ROUTER}=={VERSION}",)


def router_wheels(cache: Path) -> Path:
    """The directory of the wheels that are the door's alone, downloaded once by this machine's pip."""

    def make(beside: Path) -> None:
        venv = beside / "venv"
        run(PYTHON, "-m", "venv", venv)
        words = ["-m", "pip", "download", "--quiet", "--no-cache-dir", "--no-deps"]
        run(venv / "bin/python", *words, "--only-binary", ":all:", "--dest", beside, *OWN)
        run("rm", "-r", venv)

    return make_once(cache / "door-wheels", make, json.dumps(OWN))


def add_router(cache: Path, root: Path) -> None:
    """Put the door's wheels, their pages and the lock into what a run's mirror serves."""
    more = []
    for file in sorted(router_wheels(cache).glob("*.whl")):
        there = root / "files" / file.name
        if not there.exists():
            there.hardlink_to(file)
            more.append(there)
    pages(root / "simple", more, root / "door", "../../files")
    for about in (root / "door").glob("*.metadata"):
        about.rename(root / "files" / about.name)
    (root / "locks" / f"{LOCK}.txt").write_text(_lock((root / "files").glob("*.whl")))


def _lock(files: Iterable[Path]) -> str:
    wanted = {canonicalize_name(name) for name in (ROUTER, *NEEDS)}
    packages = []
    for file in files:
        name, version, _, _ = parse_wheel_filename(file.name)
        if name in wanted:
            with open(file, "rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            packages.append(
                Package(
                    name=str(name),
                    version=str(version),
                    hashes=(f"sha256:{digest}",),
                    file=file.name,
                    size=file.stat().st_size,
                )
            )
    lock = WheelLock(
        release=VERSION,
        architecture="x86_64",
        python="3.11",
        glibc="2.34",
        device="cpu",
        as_of="2026-11-30T00:00:00Z",
        uv=UV,
        packages=tuple(sorted(packages, key=lambda one: one.name)),
    )
    return door_text(lock)
