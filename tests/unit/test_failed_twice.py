"""A start that can only fail again is not tried again: the real gates, over a log that is played."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from plans import paths
from plans.ends import End, last_end
from plans.plan import NodePlan
from tests.unit.deployments import one, plan
from tests.unit.test_ends import FAILED, LOADING, SLICE, STARTING, STOPPING, UP, exited
from tests.unit.wheels import wheel_plan

SHELLS = {"dash": ["dash"], "busybox": ["busybox", "sh"]}
SHELLS = {name: argv for name, argv in SHELLS.items() if shutil.which(argv[0])}
LOADS = "[2026-11-30 15:00:00] server_args=ServerArgs(model_path='x')\nLoad weight begin. avail mem=20 GB"
COMPILES = f"{LOADS}\nLoad weight end. elapsed=3 s\nCapture cuda graph begin. This can take minutes"
MISMATCH = (
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95"
)


@dataclass
class Node:
    """A node on which deployment 1 of chat is started and fails."""

    root: Path
    shell: list[str]

    def stand_in(self, name: str, text: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def gate(self, word: str, number: int, result: str) -> str:
        (self.root / "deployments/chat/current").unlink(missing_ok=True)
        (self.root / "deployments/chat/current").symlink_to(str(number))
        done = subprocess.run(
            [*self.shell, str(self.root / "deployments/chat/current/stop-gate"), word],
            env={
                "PATH": f"{self.root}/bin:/usr/bin:/bin",
                "SERVICE_RESULT": result,
                "SGLANG_DEPLOYMENT": str(number),
                "SGLANG_PROBE_HOST": "127.0.0.1",
                "SGLANG_PORT": "1",
                "SGLANG_SILENCE_LIMIT": "900",
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stderr == ""
        return done.stdout

    def start(self, log: str, result: str = "exit-code", number: int = 1) -> str:
        """Start it, let it log this and end so; return what the gate says after it."""
        self.gate("open", number, "success")
        (self.root / "log").write_text(log + "\n")
        return self.gate("after", number, result)

    def shows(self, restarts: int, enter: int, exit_: int) -> None:
        """Let systemd say how the next start came about, as systemd 252 and 257 were seen to."""
        (self.root / "shown").write_text(
            f"NRestarts={restarts}\nInactiveExitTimestampMonotonic={exit_}\n"
            f"InactiveEnterTimestampMonotonic={enter}\n"
        )

    @property
    def told(self) -> str:
        """What systemd was told since the last look."""
        file = self.root / "told"
        text = file.read_text() if file.exists() else ""
        file.unlink(missing_ok=True)
        return text


def node_of(root: Path, shell: list[str], made: NodePlan) -> Node:
    node = Node(root, shell)
    (root / "bin").mkdir()
    for number in (1, 2):
        here = root / f"deployments/chat/{number}"
        here.mkdir(parents=True)
        for file in one(made).files:
            if file.link is None and file.path.endswith(("-gate", paths.LAUNCH_ENV)):
                text = file.text.replace(paths.RUN, f"{root}/run")
                (here / file.name).write_text(text)
    node.stand_in("journalctl", f"cat {root}/log")
    node.stand_in(
        "systemctl",
        f'case $1 in show) cat {root}/shown 2>/dev/null ;; *) echo "$@" >>{root}/told ;; esac',
    )
    node.stand_in("nvidia-smi", "exit 0")
    node.stand_in("sleep", "exit 0")
    return node


@pytest.fixture(params=SHELLS)
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Node:
    return node_of(tmp_path, SHELLS[request.param], plan())


NAP = shutil.which("sleep")  # the real one: its stand-in ends at once
TWICE = "stop gate: not tried again: its start has failed twice in phase: loading weights\n"
STOP = "--no-block stop sglang@chat.service\n"


def test_the_second_failure_in_one_phase_is_the_last(node: Node) -> None:
    assert node.start(LOADS) == ""
    assert node.told == ""
    assert node.start(LOADS) == TWICE
    assert node.told == STOP
    # Started by hand it has two tries again.
    assert node.start(LOADS) == ""
    assert node.start(LOADS) == TWICE


@pytest.mark.parametrize(
    ("restarts", "enter", "exit_", "by_hand"),
    [
        (1, 59593705182, 59593716785, False),
        (2, 59450000000, 59450064000, False),
        (0, 59599957914, 59600060537, True),  # stopped and started, or restarted
        (0, 0, 59588233851, True),
        (2, 59599957914, 59605060537, True),  # stopped while the next one was due, then started
    ],
)
def test_a_start_by_hand_has_two_tries_whatever_failed_before(
    node: Node, restarts: int, enter: int, exit_: int, by_hand: bool
) -> None:
    assert node.start(LOADS) == ""
    node.shows(restarts, enter, exit_)
    assert node.start(LOADS) == ("" if by_hand else TWICE)
    node.shows(1, 1, 2)
    assert node.start(LOADS) == (TWICE if by_hand else "")


def test_a_stop_by_hand_of_a_second_start_resets_what_failed_before(node: Node) -> None:
    node.shows(1, 1, 2)
    assert node.start(LOADS) == ""
    assert node.start(LOADS, "success") == ""
    assert not (node.root / "run/failed.chat").exists()
    assert node.start(LOADS) == ""
    assert node.start(LOADS) == TWICE


def test_so_it_is_in_an_environment(tmp_path: Path) -> None:
    node = node_of(tmp_path, ["dash"], wheel_plan())
    assert [node.start(LOADS, "timeout"), node.start(LOADS, "timeout")] == ["", TWICE]
    assert node.told == STOP


def test_what_moves_on_is_tried_again(node: Node) -> None:
    assert node.start(LOADS) == ""
    assert node.start(COMPILES) == ""
    assert node.start(LOADS) == ""
    assert node.start(LOADS, number=2) == ""
    assert node.told == ""


def test_a_start_without_a_phase_is_the_unit_s_own_matter(node: Node) -> None:
    for _ in range(4):
        assert node.start("docker: Error response from daemon: conflict") == ""
    assert node.told == ""


def test_a_stop_while_it_starts_is_no_failure(node: Node) -> None:
    assert node.start(LOADS, "success") == ""
    assert node.start(LOADS, "success") == ""
    node.gate("open", 1, "success")
    (node.root / "run/asked.chat").touch()
    assert "asked for by the toolkit" in node.gate("after", 1, "exit-code")
    assert not (node.root / "run/failed.chat").exists()


def test_one_that_had_come_up_is_no_start_that_failed(node: Node) -> None:
    assert node.start(LOADS) == ""
    node.gate("open", 1, "success")
    # What the ready gate does when the first answer has come; the node tier has it for real.
    gate = (node.root / "deployments/chat/1/ready-gate").read_text()
    (line,) = (line.strip() for line in gate.splitlines() if "starting.chat" in line)
    subprocess.run(["sh", "-c", line], check=True)
    assert list((node.root / "run").iterdir()) == []
    assert node.gate("after", 1, "exit-code") == ""
    assert node.start(LOADS) == ""


def test_a_node_that_waits_for_a_reboot_says_so_at_the_first_failure(node: Node) -> None:
    node.stand_in("nvidia-smi", f"echo '{MISMATCH}'; exit 18")
    said = node.start("docker: Error response from daemon: failed to create task")
    assert said == (
        "stop gate: not tried again: this node waits for a reboot: the driver that runs and its "
        "libraries are of two versions\n"
    )
    assert node.told == STOP


def test_a_look_at_the_driver_that_never_ends_is_given_up(node: Node) -> None:
    node.stand_in("timeout", "exit 124")
    assert node.start(LOADS) == ""
    assert os.listdir(node.root / "run") == ["failed.chat"]


def test_a_look_at_the_driver_that_cannot_even_be_killed_is_left_behind(node: Node) -> None:
    # Of a process in uninterruptible sleep `timeout` sees just that it does not end. The gate's
    # clock goes fast, so that the test takes no ten seconds.
    node.stand_in("nvidia-smi", f"trap '' TERM; echo $$ >>{node.root}/pids; exec {NAP} 40")
    node.stand_in("date", f"{NAP} 0.2; echo . >>{node.root}/ticks; grep -c . {node.root}/ticks")
    began = time.monotonic()
    try:
        assert node.start(LOADS) == ""
        assert os.listdir(node.root / "run") == ["failed.chat"]
        assert time.monotonic() - began < 8
    finally:
        for pid in (node.root / "pids").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def test_status_says_why_it_is_not_tried_again() -> None:
    said = TWICE.strip()
    # The stop by which it is kept from its next start is not somebody's.
    end = last_end([STARTING, *LOADING, exited("1/FAILURE"), STOPPING, said, FAILED], SLICE)
    why = "its start has failed twice in phase: loading weights"
    assert end == End("ended by itself", "status 1", "loading weights", given_up=why)
    assert end.sentence.endswith(f", not tried again: {why}")
    later = last_end([STARTING, said, FAILED, *UP, exited("137/n/a"), FAILED], SLICE)
    assert later == End("crashed", "status 137")
