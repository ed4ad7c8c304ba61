"""What a run of a program costs: time, remote commands, processor, memory."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fleet.hosts import Fleet
from tests.node.harness.stage import control_groups, kill, remove_groups

SAMPLE_S = 1.0


@dataclass(frozen=True)
class Cost:
    """What one run cost."""

    seconds: float
    commands: int  # on all hosts together
    cpu_s: float  # of all processes of the controller, those too that went to the background
    node_cpu_s: float  # of the nodes that the hosts are: in converged runs mostly of sshd
    memory_mib: float  # the most that all its processes held at once (PSS), sampled


def measured(fleets: Sequence[Fleet], words: Sequence[str], env: Mapping[str, str]) -> Cost:
    """Run a program over hosts in a control group of its own; end what it left in the background.

    Raises RuntimeError with its output where it fails.
    """
    group = control_groups() / fleets[0].node.stage.bridge / "controller"
    group.mkdir(parents=True, exist_ok=True)
    there = [fleet.node.stage.cgroup(fleet.node.name) for fleet in fleets]
    for fleet in fleets:
        fleet.commands()
    before, cpu = sum(map(_cpu, there)), _cpu(group)
    most = [0.0]
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(group, done, most))
    watcher.start()
    began = time.monotonic()
    ran = subprocess.run(
        ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(group), *words],
        env={**as_installed(), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seconds = time.monotonic() - began
    done.set()
    watcher.join()
    cpu, node_cpu = _cpu(group) - cpu, sum(map(_cpu, there)) - before
    kill(group)
    remove_groups(group)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(words)}: ended with {ran.returncode}\n{ran.stdout[-4000:]}")
    commands = sum(fleet.commands() for fleet in fleets)
    return Cost(seconds, commands, cpu, node_cpu, most[0])


def as_installed() -> dict[str, str]:
    """Return this environment, in which Python keeps what it compiled, as it does for a user."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _cpu(group: Path) -> float:
    for line in (group / "cpu.stat").read_text().splitlines():
        if line.startswith("usage_usec "):
            return int(line.split()[1]) / 1e6
    raise RuntimeError(f"{group} does not count processor time")


def _watch(group: Path, done: threading.Event, most: list[float]) -> None:
    while not done.wait(SAMPLE_S):
        total = 0
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                for line in Path("/proc", pid, "smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total += int(line.split()[1])
        most[0] = max(most[0], total / 1024)
