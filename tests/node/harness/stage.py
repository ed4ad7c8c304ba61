"""What one test run owns on this machine: a directory, a bridge with addresses, and their end.

Run as a program (`python stage.py DIRECTORY BRIDGE`) it is the guard: it waits until the test run
that started it is gone, for whatever reason, and then takes everything away.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

# Each run gets NET.<number>.0/24; SGLANG_NODE_NET names another first half.
NET = "10.213"
RUNS = 64

# How long a process gets between SIGTERM and SIGKILL at the end, in seconds; a node with a
# draining SGLang takes longest, and a test run is not there to wait for it.
PATIENCE = 15.0


def _ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True)


@dataclass
class Stage:
    """An open stage: `directory` on disk, `bridge` with `address` (the host's end of it)."""

    directory: Path
    number: int
    bridge: str
    address: str
    _guard: subprocess.Popen[bytes]
    _last: int = 1

    @classmethod
    def open(cls, cache: Path) -> Stage:
        """Take the first number that no other run holds, clean what a dead run left, and begin.

        Raises RuntimeError where no number is free or the bridge cannot be made.
        """
        runs = cache / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        for number in range(RUNS):
            # The guard inherits the lock: the number is free again when the guard has ended.
            with open(runs / f".{number}.lock", "w") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue
                directory, bridge = runs / str(number), f"sglnode{number}"
                sweep(directory, bridge)
                net = f"{os.environ.get('SGLANG_NODE_NET', NET)}.{number}"
                if not _is_free(f"{net}.0/24"):
                    continue
                (directory / "processes").mkdir(parents=True)
                guard = subprocess.Popen(
                    [sys.executable, __file__, str(directory), bridge],
                    stdin=subprocess.PIPE,
                    pass_fds=[lock.fileno()],
                    start_new_session=True,
                )
                stage = cls(directory, number, bridge, f"{net}.1", guard)
            try:
                stage._make_bridge()
            except BaseException:
                stage.close()
                raise
            return stage
        raise RuntimeError(f"all {RUNS} stages under {runs} are taken")

    def _make_bridge(self) -> None:
        for words in (
            ("link", "add", self.bridge, "type", "bridge"),
            ("addr", "add", f"{self.address}/24", "dev", self.bridge),
            ("link", "set", self.bridge, "up"),
        ):
            done = _ip(*words)
            if done.returncode:
                raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def next_address(self) -> str:
        """An address on the bridge that no other node of this run has."""
        self._last += 1
        return f"{self.address.rpartition('.')[0]}.{self._last}"

    def start(
        self, argv: list[str], log: IO[bytes], env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program that the guard will end, out of reach of Ctrl-C; output goes to `log`."""
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        (self.directory / "processes" / str(process.pid)).write_text(_born(process.pid))
        return process

    def close(self) -> None:
        """End everything that was started here and wait for it; safe to call twice."""
        if self._guard.stdin:
            self._guard.stdin.close()
        self._guard.wait()


def mount_overlay(lower: Path, folder: Path) -> Path:
    """Mount an overlay of `lower` whose changes stay in `folder`/upper; return its mount point."""
    names = {name: folder / name for name in ("upper", "work", "root")}
    for path in names.values():
        path.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={lower},upperdir={names['upper']},workdir={names['work']}"
    subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, str(names["root"])], check=True
    )
    return names["root"]


def sweep(directory: Path, bridge: str) -> None:
    """Take away what a run left: its processes (by their ids), mounts, bridge and directory."""
    folder = directory / "processes"
    pids = [int(file.name) for file in folder.iterdir()] if folder.is_dir() else []
    alive = [pid for pid in pids if _born(pid) == (folder / str(pid)).read_text()]
    for number, patience in ((signal.SIGTERM, PATIENCE), (signal.SIGKILL, 5.0)):
        # A node's own process 1 may outlive a systemd-nspawn that is killed.
        inits = [child for pid in alive for child in children(pid)]
        for pid in [*alive, *(inits if number == signal.SIGKILL else [])]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        end = time.monotonic() + patience
        while alive and time.monotonic() < end:
            time.sleep(0.05)
            alive = [pid for pid in alive if _born(pid)]
    for point in sorted(_mounts_below(directory), reverse=True):
        if subprocess.run(["umount", point], capture_output=True).returncode:
            subprocess.run(["umount", "--lazy", point])
    if Path("/sys/class/net", bridge).exists():
        _ip("link", "del", bridge)
    if directory.exists() and not _mounts_below(directory):
        shutil.rmtree(directory, ignore_errors=True)


def _mounts_below(directory: Path) -> list[str]:
    points = (line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
    return [point for point in points if point.startswith(f"{directory}/")]


def children(pid: int) -> list[int]:
    """The processes that `pid` started and that still run."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _born(pid: int) -> str:
    """When process `pid` started, in clock ticks since boot; "" where it is gone or a zombie."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] == "Z" else words[19]


def _is_free(net: str) -> bool:
    """Whether no route of this machine touches `net`, the default route aside."""
    wanted = ipaddress.ip_network(net)
    for route in json.loads(_ip("-j", "-4", "route", "show", "table", "all").stdout or "[]"):
        if route["dst"] != "default" and ipaddress.ip_network(route["dst"]).overlaps(wanted):
            return False
    return True


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdin.buffer.read()
    sweep(Path(sys.argv[1]), sys.argv[2])
