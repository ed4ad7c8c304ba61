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

# Numbers are taken on the whole machine, whatever the cache directories are.
LOCKS = Path("/run/lock")

# How long systemd-nspawn gets to tidy up behind a node that was killed, in seconds; it needs 0.1.
PATIENCE = 5.0


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
        for number in range(RUNS):
            bridge = f"sglnodes{number}"
            # The guard inherits the lock: the number is free again when the guard has ended.
            with open(LOCKS / f"{bridge}.lock", "a+") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue
                lock.seek(0)
                left = lock.read()
                if left:
                    sweep(Path(left), bridge)
                directory = cache / "runs" / bridge
                net = f"{os.environ.get('SGLANG_NODE_NET', NET)}.{number}"
                if directory.exists() or not _is_free(f"{net}.0/24"):
                    continue
                lock.truncate(0)
                lock.write(str(directory))
                lock.flush()
                directory.mkdir(parents=True)
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
        raise RuntimeError(f"all {RUNS} networks under {NET} are taken")

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

    def cgroup(self, name: str) -> Path:
        """The control group of what was started under `name`."""
        return control_groups() / self.bridge / name

    def start(
        self, name: str, argv: list[str], log: IO[bytes], env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program that the guard will end, out of reach of Ctrl-C; output goes to `log`.

        It gets a control group of its own: without one all nodes would share a single tree, and
        the systemd of one would kill and remove what the systemd of another made.
        """
        group = self.cgroup(name)
        remove_groups(group)
        group.mkdir(parents=True)
        enter = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
        return subprocess.Popen(
            ["sh", "-c", enter, str(group), *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )

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


def control_groups() -> Path:
    """Where this machine's control groups of version 2 are mounted."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(point)
    raise RuntimeError("no cgroup2 file system is mounted on this machine")


def kill(group: Path, patience: float = 10.0) -> None:
    """Kill every process in a control group and below at once, and wait until all are gone."""
    end = time.monotonic() + patience
    with suppress(FileNotFoundError):
        (group / "cgroup.kill").write_text("1")
        while populated(group) and time.monotonic() < end:
            time.sleep(0.02)


def populated(group: Path) -> bool:
    """Whether a process lives in a control group or below."""
    try:
        return "populated 1" in (group / "cgroup.events").read_text()
    except OSError:
        return False


def remove_groups(group: Path) -> None:
    """Remove an empty control group with all below it."""
    for folder, _, _ in os.walk(group, topdown=False):
        with suppress(OSError):
            os.rmdir(folder)


def sweep(directory: Path, bridge: str) -> None:
    """Take away what a run left: its processes, mounts, bridge and directory."""
    everything = control_groups() / bridge
    for payload in everything.glob("*/payload"):  # systemd-nspawn then ends by itself, tidily
        kill(payload)
    end = time.monotonic() + PATIENCE
    while any(map(populated, everything.glob("*/supervisor"))) and time.monotonic() < end:
        time.sleep(0.02)
    kill(everything)
    remove_groups(everything)
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
