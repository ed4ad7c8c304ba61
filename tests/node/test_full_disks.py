"""The programs of an upgrade over file systems that are full: refused with the place and the
command, nothing half-written, and going back is not kept from its way.

Without a node: the programs by a real shell, over a small tmpfs of this machine.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from plans import paths, proof_scripts, scripts
from plans.deployment import PlannedFile
from plans.onnode import refusal_in
from plans.refusals import Refusal
from tests.skipping import skip
from tests.unit.killing import Box
from tests.unit.test_killed_programs import CHAT, DROP_IN, box, ends, switch, whole


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Box]:
    """A node whose state, and whose units, lie on small file systems of their own."""
    yield from laid_over(tmp_path / "node", "var/lib/sglang", "etc/systemd/system")


@pytest.fixture
def one_disk(tmp_path: Path) -> Iterator[Box]:
    """A node whose state and whose units lie on one small file system."""
    units = tmp_path / "node/etc/systemd/system"
    units.parent.mkdir(parents=True)
    units.symlink_to(tmp_path / "node/var/lib/sglang/units")
    yield from laid_over(tmp_path / "node", "var/lib/sglang", first="units")


def laid_over(root: Path, *places: str, first: str = "") -> Iterator[Box]:
    """Give a node with a small file system at each of these places; ``first``: a directory there."""
    if os.geteuid() != 0:
        skip("full disks: not root")
    mounts = [root / place for place in places]
    for mount in mounts:
        mount.mkdir(parents=True)
        laid = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=40m,nr_inodes=200", "tmpfs", str(mount)]
        )
        if laid.returncode:
            skip("full disks: no tmpfs can be mounted")
        (mount / first).mkdir(exist_ok=True)
    yield box(root)
    for mount in mounts:
        subprocess.run(["umount", str(mount)], check=True)


def fill(node: Box, path: str, *, inodes: bool = False) -> None:
    """Fill a file system to its last block, or to its last file."""
    if inodes:
        (node.root / path / "many").mkdir()
        names = (node.root / path / f"many/{number}" for number in range(1000))
        try:
            for name in names:
                name.symlink_to("x")
        except OSError:
            return
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={node.root}/{path}/fill", "bs=64k"], stderr=subprocess.DEVNULL
    )


def refused(ran: subprocess.CompletedProcess[str]) -> Refusal:
    """Return the one refusal that a program printed."""
    assert ran.returncode == 75, ran.stdout + ran.stderr
    (found,) = filter(None, map(refusal_in, ran.stdout.splitlines()))
    assert found.code == "DISK_FULL"
    return found


def deployment(number: int) -> str:
    files = (PlannedFile(f"{paths.Deployment('chat', number).directory}/server.yaml", "x" * 9999),)
    return scripts.write_deployment(paths.Deployment("chat", number).directory, files)


def test_a_deployment_that_does_not_fit_is_refused_and_leaves_nothing(node: Box) -> None:
    fill(node, "var/lib/sglang")
    refusal = refused(node.run(deployment(4)))
    place = f"{node.root}/var/lib/sglang"
    assert refusal.seen == f"nothing was changed: 0 KiB free on {place} for {node.root}/{CHAT}/4"
    assert refusal.needed == "16 MiB and 64 inodes at least"
    assert refusal.advice.startswith(f"make room: df -h {place}; sudo du -xsh {place}/*")
    assert not (node.root / CHAT / "4.new").exists()
    whole(node)


@pytest.mark.parametrize("path", ["etc/systemd/system", "var/lib/sglang"])
def test_a_switch_whose_files_do_not_fit_is_refused_before_anything_counts(
    node: Box, path: str
) -> None:
    # On the units' own it is the last block, where the links are the last name.
    fill(node, path, inodes=path == "var/lib/sglang")
    program = switch(node, 3, goes_back=False)
    refusal = refused(node.run(program))
    assert refusal.seen.startswith("nothing was switched, and what ran before runs on: 0 ")
    assert f" free on {node.root}/{path} for " in refusal.seen
    whole(node)
    assert not any("systemctl" in one for one in node.steps)
    assert os.readlink(node.root / CHAT / "current") == "2"
    assert not (node.root / CHAT / ".current").is_symlink()
    assert not list((node.root / DROP_IN).parent.glob("*.new"))


def test_going_back_needs_no_room(node: Box) -> None:
    node.put(DROP_IN, "10-toolkit.conf of 1\n")  # which the two deployments have in common
    fill(node, "var/lib/sglang")
    ran = node.run(switch(node, 1, goes_back=True))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (node.root / "var/lib/sglang/fill").unlink()
    ends(node, 1, "2")


def test_going_back_to_another_drop_in_needs_no_room_on_a_disk_that_has_both(one_disk: Box) -> None:
    node = one_disk
    fill(node, "var/lib/sglang")
    ran = node.run(switch(node, 1, goes_back=True))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    ends(node, 1, "2")
    drop_in, kept = node.root / DROP_IN, node.root / CHAT / "1/10-toolkit.conf"
    assert drop_in.samefile(kept)
    # Where there is room again the next switch puts a file in its place, and the kept one stays.
    (node.root / "var/lib/sglang/fill").unlink()
    ran = node.run(switch(node, 2, goes_back=True))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    ends(node, 2, "1")
    assert not drop_in.samefile(node.root / CHAT / "2/10-toolkit.conf")
    assert kept.read_text() == "10-toolkit.conf of 1\n"


def test_going_back_to_another_drop_in_on_another_disk_is_refused_and_leaves_nothing(
    node: Box,
) -> None:
    fill(node, "etc/systemd/system")
    refusal = refused(node.run(switch(node, 1, goes_back=True)))
    assert f" free on {node.root}/etc/systemd/system for " in refusal.seen
    whole(node)
    assert os.readlink(node.root / CHAT / "current") == "2"
    assert not list((node.root / DROP_IN).parent.glob("*.new"))


def test_a_record_that_does_not_fit_leaves_the_old_one_and_names_the_place(node: Box) -> None:
    node.put(f"{CHAT}/2/record.json", '{"upgrade": "begun"}\n')
    fill(node, "var/lib/sglang")
    ran = node.run(scripts.write_record("chat", 2, "x" * 9999))
    assert ran.returncode == 1
    why, last = ran.stderr.splitlines()[-2:]
    assert "write error" in why
    assert last == (
        f"nothing was recorded in {node.root}/{CHAT}/2/record.json; is the disk full or read-only? "
        f"df -h {node.root}/{CHAT}/2"
    )
    assert node.said(f"{CHAT}/2/record.json") == '{"upgrade": "begun"}'
    assert not (node.root / CHAT / "2/record.json.new").exists()


def test_logs_that_do_not_fit_keep_nobody_from_going_back(node: Box) -> None:
    node.put(f"{CHAT}/2/record.json", '{"upgrade": "begun"}\n')
    node.program("journalctl", "#!/bin/sh\nseq 2000\n")
    fill(node, "var/lib/sglang")
    ran = node.run(proof_scripts.keep_logs("chat", 2, "one", "x" * 9999))
    assert ran.returncode == 0, ran.stderr
    assert "record.json, that it failed; is the disk full or read-only? df -h " in ran.stdout
    assert node.said(f"{CHAT}/2/record.json") == '{"upgrade": "begun"}'
    left = {path.name for path in (node.root / CHAT / "2").iterdir()}
    assert not {name for name in left if name.endswith((".new", ".log"))}
