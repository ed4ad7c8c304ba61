"""The programs of an upgrade and of a rollback, killed at every command: the old deployment or the
new one is whole afterwards, and a second run ends as one that nobody killed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from facts.stock import PROGRAM
from plans import paths, scripts
from plans.deployment import PlannedFile
from plans.goingback import Back
from plans.plan import Guard
from plans.wishes import Service
from tests.unit.killing import Box

CHAT = "var/lib/sglang/deployments/chat"
DROP_IN = "etc/systemd/system/sglang@chat.service.d/10-toolkit.conf"
SERVICE = Service(name="chat", model="/srv/models/tiny")
FILES = ("launch.env", "server.yaml", "10-toolkit.conf", "sglang@.service")


@pytest.fixture(autouse=True)
def root_s_own() -> None:
    """Skip where nobody is root: the program's directories must be root's."""
    if os.geteuid() != 0:
        pytest.skip("not root")


def text_of(name: str, number: int) -> str:
    """Return what a file of a deployment holds: the unit alone is the same for all."""
    return f"{name}\n" if name == "sglang@.service" else f"{name} of {number}\n"


def box(root: Path) -> Box:
    """Return a node that runs deployment 2, went there from 1, and has 3 written."""
    made = Box.make(root)
    for number in (1, 2, 3):
        for name in FILES:
            made.put(f"{CHAT}/{number}/{name}", text_of(name, number))
    (root / CHAT / "current").symlink_to("2")
    (root / CHAT / "previous").symlink_to("1")
    made.put(DROP_IN, text_of("10-toolkit.conf", 2))
    made.put("etc/systemd/system/sglang@.service", text_of("sglang@.service", 2))
    for name, text in (("pid", "41"), ("invocation", "two"), ("active", "active"), ("runs", "2")):
        made.put(name, text)
    return made


def switch(box: Box, number: int, *, goes_back: bool, stop_first: bool = False) -> str:
    """Return the switch to a deployment, as it is planned on the node as it is now."""
    current = int(os.readlink(box.root / CHAT / "current"))
    there = box.said(DROP_IN) + "\n"
    wanted = text_of("10-toolkit.conf", number)
    drop_in = PlannedFile(f"/{DROP_IN}", wanted) if there != wanted else None
    sums = {f"/{DROP_IN}": PlannedFile("", there).sha256}
    runs = box.said("runs") == str(number)
    to = Back(
        "chat",
        current,
        number,
        service=SERVICE,
        drop_in=drop_in,
        daemon_reload=True,
        stop_first=stop_first and not runs,
        act="verify" if runs else "restart" if box.said("active") == "active" else "start",
        guard=Guard(current, int(box.said("pid")), box.said("invocation"), sums, None),
    )
    text = scripts.switch_to(
        to,
        SERVICE,
        caches=paths.CACHES,
        cache_directory=f"{paths.CACHES}/build",
        owner="",
        directories=[],
        switch_links=number != current,
    )
    assert ("/back" in text) is (number != current)
    return text if goes_back else text.replace("/back", "/nothing-of-the-kind")


def previous_as_read(box: Box) -> str:
    """Return where the link to the previous deployment leads, as what reads it for a collection
    says; that the survey says the same is held in test_history.py."""
    text = PROGRAM.read_text(encoding="utf-8")
    begins = text.index("\nlink_of() {")
    function = text[begins : text.index("\n}\n", begins) + 3]
    asked = f"{function}\nlink_of {box.root}/{CHAT} previous\n"
    return subprocess.run(["sh", "-c", asked], capture_output=True, text=True).stdout.strip()


def whole(box: Box) -> None:
    """Check that what runs, and what a boot would start, is whole."""
    current = int(os.readlink(box.root / CHAT / "current"))
    for number in {current, int(box.said("runs") or current)}:
        for name in FILES:
            assert box.said(f"{CHAT}/{number}/{name}") + "\n" == text_of(name, number)
    assert box.said(DROP_IN)[-1] in "123"
    assert box.said("etc/systemd/system/sglang@.service") + "\n" == text_of("sglang@.service", 1)


def ends(box: Box, number: int, before: str) -> None:
    """Check that the node is as a switch to a deployment that nobody killed leaves it."""
    whole(box)
    assert (box.said("runs"), box.said("active")) == (str(number), "active")
    assert os.readlink(box.root / CHAT / "current") == str(number)
    assert os.readlink(box.root / CHAT / "previous") == before == previous_as_read(box)
    assert box.said(DROP_IN)[-1] == str(number)
    left = [path.name for path in (box.root / CHAT).iterdir()]
    assert sorted(left) == ["1", "2", "3", "current", "previous"]
    assert not list((box.root / DROP_IN).parent.glob("*.new"))


@pytest.mark.parametrize(
    ("number", "goes_back", "stop_first"), [(3, False, False), (3, False, True), (1, True, False)]
)
def test_a_switch_killed_at_any_command_leaves_one_whole_and_is_run_again(
    tmp_path: Path, number: int, goes_back: bool, stop_first: bool
) -> None:
    once = box(tmp_path / "once")
    ran = once.run(switch(once, number, goes_back=goes_back, stop_first=stop_first))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    ends(once, number, "2")
    steps = once.steps
    print(f"{len(steps)} commands")
    assert len(steps) >= 12
    assert any(one.startswith("systemctl --no-block") for one in steps)
    for at in range(1, len(steps) + 1):
        node = box(tmp_path / f"{at}")
        first = switch(node, number, goes_back=goes_back, stop_first=stop_first)
        told = f"killed before {steps[at - 1]}"
        assert node.run(first, kill_at=at).returncode == -9, told
        whole(node)
        # Nobody has lost where the one before is.
        expected = "2" if os.readlink(node.root / CHAT / "current") == str(number) else "1"
        assert previous_as_read(node) == expected, told
        again = switch(node, number, goes_back=goes_back, stop_first=stop_first)
        ran = node.run(again)
        assert ran.returncode == 0, told + ran.stdout + ran.stderr
        ends(node, number, "2")
        shutil.rmtree(node.root)
