"""What a loss of power leaves of a deployment, on a real file system: whole files, or none.

An ext4 over a loop: what was not written back yet is in no copy of its image, so a copy that is
mounted is what a machine would find at its next boot.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plans import paths, scripts
from plans.deployment import PlannedFile
from tests.skipping import skip

FILES = {"launch.env": 'SGLANG_IMAGE="x"\n' * 50, "server.yaml": "a: 1\n"}
RECORD = '{"deployment": 2}\n'


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The mount of a small ext4 that commits its journal each second; its image is beside it."""
    image, mount = tmp_path / "image", tmp_path / "disk"
    mount.mkdir()
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        skip("power loss: not root, or no mkfs.ext4 (package e2fsprogs)")
    subprocess.run(["truncate", "-s", "32M", str(image)], check=True)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    laid = subprocess.run(["mount", "-o", "loop,commit=1", str(image), str(mount)], stderr=-1)
    if laid.returncode:
        skip(f"power loss: no loop device: {laid.stderr.decode(errors='replace').strip()}")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def after_a_power_loss(disk: Path) -> dict[str, str]:
    """Return the text of each file, by its path, that is there after a loss of power now."""
    copy, mount = disk.parent / "copy", disk.parent / "after"
    mount.mkdir(exist_ok=True)
    shutil.copy(disk.parent / "image", copy)
    subprocess.run(["mount", "-o", "loop", str(copy), str(mount)], check=True)
    try:
        place = mount / "deployments/chat"
        return {
            str(path.relative_to(place)): os.readlink(path)
            if path.is_symlink()
            else path.read_text(encoding="utf-8")
            for path in place.rglob("*")
            if path.is_symlink() or path.is_file()
        }
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def run(program: str, disk: Path) -> None:
    text = program.replace(paths.STATE, str(disk))
    subprocess.run(["sh", "-s"], input=text, text=True, check=True)


def test_what_the_link_leads_to_is_whole_after_a_power_loss(disk: Path) -> None:
    directory = paths.Deployment("chat", 2).directory
    files = tuple(PlannedFile(f"{directory}/{name}", text) for name, text in FILES.items())
    run(scripts.write_deployment(directory, files), disk)
    run(scripts.write_record("chat", 2, RECORD), disk)
    (disk / "deployments/chat/current").symlink_to("2")
    # Names come to the disk with the journal, what files hold half a minute later.
    end = time.monotonic() + 20
    while "current" not in (found := after_a_power_loss(disk)):
        assert time.monotonic() < end
        time.sleep(0.3)
    assert found["current"] == "2"
    assert {name: found[f"2/{name}"] for name in FILES} == FILES
    assert found["2/record.json"] == RECORD
