"""Builds of Python as uv downloads them, made from a real CPython: Debian's own, with its headers.

uv's own builds cannot be had where these tests run. The archive has their shape (one folder,
`python`), and the list of downloads is in the form that uv reads.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from .cache import make_once, run
from .trees import mirror

SUITE = "bookworm"
MINOR = "3.11"
PACKAGES = ("python3.11", "libpython3.11-dev")
BUILD = "20260101"

# A program that says its own version, run by the build itself.
VERSION = "import platform; print(platform.python_version())"

# The archive is unpacked anywhere: where its headers are is known then, not when it is made.
HERE_IS_INCLUDE = """
import sys as _sys
build_time_vars["INCLUDEPY"] = build_time_vars["CONFINCLUDEPY"] = (
    _sys.base_prefix + "/include/python3.11"
)
"""


def pythons(cache: Path) -> Path:
    """A directory with the archive and `builds.json`: uv's list, with file names for addresses."""

    def make(beside: Path) -> None:
        extracted, python = beside / "extracted", beside / "python"
        run(
            *("mmdebstrap", "--quiet", "--mode=root", "--variant=extract"),
            *(f"--include={','.join(PACKAGES)}", SUITE, extracted, mirror()),
        )
        _assemble(extracted / "usr", python)
        version = run(python / "bin/python3", "-c", VERSION).strip()
        file = f"cpython-{version}+{BUILD}-x86_64-unknown-linux-gnu-install_only.tar.gz"
        run("tar", "--numeric-owner", "-C", beside, "-czf", beside / file, "python")
        shutil.rmtree(extracted)
        shutil.rmtree(python)
        with open(beside / file, "rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        key, entry = _entry(version, file, digest)
        (beside / "builds.json").write_text(json.dumps({key: entry}))

    return make_once(cache / "pythons", make, stamp=Path(__file__).read_text())


def _assemble(usr: Path, python: Path) -> None:
    """Lay Debian's parts of a Python into one folder, as they lie in a build of its own."""
    for part in ("bin", "lib", "include"):
        (python / part).mkdir(parents=True)
    shutil.copy(usr / f"bin/python{MINOR}", python / "bin")
    for link in ("python3", "python"):
        (python / "bin" / link).symlink_to(f"python{MINOR}")
    library = python / f"lib/python{MINOR}"
    run("cp", "-aL", usr / f"lib/python{MINOR}", library)
    (library / "EXTERNALLY-MANAGED").unlink(missing_ok=True)
    for static in library.glob("config-*"):
        shutil.rmtree(static)
    for variables in library.glob("_sysconfigdata_*.py"):
        variables.write_text(variables.read_text() + HERE_IS_INCLUDE)
    headers = python / f"include/python{MINOR}"
    run("cp", "-a", usr / f"include/python{MINOR}", headers)
    # Debian's only includes the one of the machine's architecture, by a path of the whole system.
    shutil.copy(usr / f"include/x86_64-linux-gnu/python{MINOR}/pyconfig.h", headers)


def _entry(version: str, file: str, digest: str) -> tuple[str, dict[str, Any]]:
    major, minor, patch = map(int, version.split("."))
    entry = {
        "name": "cpython",
        "arch": {"family": "x86_64", "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": major,
        "minor": minor,
        "patch": patch,
        "prerelease": "",
        "url": file,
        "sha256": digest,
        "variant": None,
        "build": BUILD,
    }
    return f"cpython-{version}-linux-x86_64-gnu", entry
