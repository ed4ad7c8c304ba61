"""Fetches uv for a node's CPU architecture, on the controller, with its own pip.

The index that it asks is the inventory's (`mirrors.index`), else the controller's own. What came is checked against the hashes
that the toolkit carries, each time it is used.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from platformdirs import user_cache_path

from releases.wheels.tools import FILE, PLATFORMS, Tool, uv

TIMEOUT_S = 600
"""Seconds that a fetch of 18 MB may take: pip tries again by itself on a slow line."""

_fetching = threading.Lock()


class ToolMissing(Exception):
    """uv could not be had; the text is a sentence that says why and what to do."""


@dataclass(frozen=True)
class Brought:
    """A program, as it is sent to a node."""

    compressed: bytes = field(repr=False)  # gzip
    sha256: str  # of the program itself


def fetch_uv(architecture: str, index: str | None = None, cache: Path | None = None) -> Brought:
    """Return uv for a CPU architecture as ``uname -m`` says it. Raises ToolMissing.

    ``index``: the address of an index of packages in place of the controller's own.
    """
    platform = PLATFORMS.get(architecture)
    if platform is None:
        raise ToolMissing(f"there is no uv for {architecture}")
    folder = cache or user_cache_path("pyinfra-sglang") / "tools"
    with _fetching:  # one fetch for all nodes of a run
        wheel = _in_cache(folder, uv(), platform) or _fetched(folder, uv(), platform, index)
    return _unpacked(wheel)


def _in_cache(folder: Path, tool: Tool, platform: str) -> Path | None:
    arch = platform.partition("_")[2]
    for wheel in sorted(folder.glob(f"{tool.name}-{tool.version}-*{arch}*.whl")):
        if _sum(wheel) in tool.hashes:
            return wheel
        wheel.unlink()
    return None


def index_words(index: str | None) -> tuple[str, ...]:
    """Return what makes pip ask a mirror alone; its bytes are checked by their hashes."""
    if index is None:
        return ()
    words = ("--index-url", index)
    if index.startswith("https:"):
        return words
    # Without this pip leaves out an index without TLS.
    return (*words, "--trusted-host", index.removeprefix("http://").partition("/")[0])


def _fetched(folder: Path, tool: Tool, platform: str, index: str | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
            "--no-deps", "--require-hashes", "--only-binary", ":all:", "--platform", platform,
            "--dest", work, "--requirement", str(FILE), *index_words(index),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise ToolMissing(
                f"uv {tool.version} did not come in {TIMEOUT_S} s: pip on this machine waits for "
                "its package index"
            ) from None
        wheels = list(Path(work).glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            said = [line for line in done.stderr.splitlines() if line.strip()]
            errors = [line for line in said if line.startswith("ERROR")] or said
            raise ToolMissing(
                f"uv {tool.version} could not be fetched on this machine: "
                f"{errors[-1] if errors else 'pip brought nothing'}. The wheel runtime needs pip "
                "here and its package index (pip config list)"
            )
        if _sum(wheels[0]) not in tool.hashes:
            raise ToolMissing(f"{wheels[0].name} is not the file that the toolkit names")
        there = folder / wheels[0].name
        shutil.move(wheels[0], there)
        return there


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _unpacked(wheel: Path) -> Brought:
    """Return the program in a wheel. It is compressed there as gzip does it: only head and tail
    are put around."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".data/scripts/uv"))
        entry = archive.getinfo(name)
        sha256 = hashlib.sha256(archive.read(name)).hexdigest()
        if entry.compress_type != zipfile.ZIP_DEFLATED:
            raise ToolMissing(f"{wheel.name} is packed in a way that the toolkit does not know")
    with wheel.open("rb") as file:
        file.seek(entry.header_offset)
        head = file.read(30)
        # Local file header: the lengths of its name and its extra field stand at its end.
        file.seek(sum(struct.unpack("<HH", head[26:30])), 1)
        packed = file.read(entry.compress_size)
    begin = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    end = struct.pack("<LL", entry.CRC, entry.file_size & 0xFFFFFFFF)
    return Brought(begin + packed + end, sha256)
