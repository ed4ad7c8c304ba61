"""The ready gate itself, run under the nodes' shells: systemd, Docker and the log are played."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plans.phases import gate_phases
from releases.table import RELEASES
from tests.unit.deployments import one, plan

SHELLS = {"dash": ["dash"], "busybox ash": ["busybox", "ash"], "bash": ["bash", "--posix"]}
SHELLS = {name: argv for name, argv in SHELLS.items() if shutil.which(argv[0])}
MIB = 1 << 20

READER = """
import sys
for line in sys.stdin:
    with open("/dev/zero", "rb", buffering=0) as file:
        for _ in range(int(line)):
            file.read(1 << 20)
    print("read", flush=True)
"""
"""Stands for a rank: reads so many MiB when told to; the kernel counts it as it counts any."""


@dataclass
class Played:
    """A gate that runs, with what its node shows it."""

    log: Path
    told: Path
    gate: subprocess.Popen[str]
    server: subprocess.Popen[bytes]
    ranks: list[subprocess.Popen[str]]

    def logs(self, *lines: str) -> None:
        with self.log.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def reads(self, rank: int, mib: int) -> None:
        process = self.ranks[rank]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{mib}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "read\n"

    def status(self) -> str:
        """Return the status that the gate tells next, from a look begun after now."""
        before = len(self._statuses())
        until = time.monotonic() + 20
        while time.monotonic() < until:
            told = self._statuses()
            # The one in the making may have looked before.
            if len(told) >= before + 2:
                return told[-1]
            time.sleep(0.02)
        raise AssertionError(f"the gate tells nothing: {self.gate.poll()}, {self._statuses()}")

    def _statuses(self) -> list[str]:
        text = self.told.read_text() if self.told.exists() else ""
        return re.findall(r"STATUS=(.*)", text)


def stand_in(directory: Path, name: str, text: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@contextmanager
def played(
    shell: list[str], directory: Path, model_bytes: int | None, ranks: int = 1
) -> Iterator[Played]:
    """Run the gate of a new deployment on a node that starts its server."""
    here, bin_ = directory / "chat" / "1", directory / "bin"
    here.mkdir(parents=True)
    bin_.mkdir()
    for file in one(plan()).files:
        (here / file.path.rsplit("/", 1)[1]).write_text(file.text)
    log, told = directory / "log", directory / "told"
    log.touch()
    readers = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", READER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(ranks)
    ]
    server = subprocess.Popen(["sleep", "120"])
    pids = "; ".join(f"echo {one.pid}" for one in readers)
    stand_in(bin_, "docker", f"echo PID; {pids}")
    stand_in(
        bin_,
        "journalctl",
        f'case " $* " in *" --show-cursor "*) echo "-- cursor: $(wc -c <{log})" ;; '
        f"*) tail -n 400 {log} ;; esac",
    )
    stand_in(bin_, "systemctl", "read -r up _ </proc/uptime; echo $((${up%%.*} * 1000000))")
    stand_in(bin_, "systemd-notify", f"printf '%s\\n' \"$@\" >>{told}")
    stand_in(bin_, "curl", "printf '\\n000\\n'")
    stand_in(bin_, "sleep", "exec /bin/sleep 0.02")
    environment = {
        "PATH": f"{bin_}:/usr/bin:/bin",
        "MAINPID": str(server.pid),
        "SGLANG_PROBE_HOST": "127.0.0.1",
        "SGLANG_PORT": "1",
        "SGLANG_READY_PATH": "/ready",
        "SGLANG_SILENCE_LIMIT": "900",
        "SGLANG_MODEL_BYTES": "" if model_bytes is None else str(model_bytes),
    }
    gate = subprocess.Popen(
        [*shell, str(here / "ready-gate")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Played(log, told, gate, server, readers)
    finally:
        processes: list[subprocess.Popen[Any]] = [gate, server, *readers]
        for process in processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


@pytest.fixture(params=list(SHELLS.values()), ids=list(SHELLS))
def shell(request: pytest.FixtureRequest) -> list[str]:
    found: list[str] = request.param
    return found


def weights_read(status: str, total: int) -> int:
    found = re.search(rf", (\d+) of {total} MiB of weights read", status)
    assert found is not None, status
    return int(found[1])


def test_people_see_the_phase_and_what_was_read_of_how_much(
    shell: list[str], tmp_path: Path
) -> None:
    with played(shell, tmp_path, 640 * MIB) as it:
        assert re.match(r"starting, \d+ s, \d+ MiB read, 640 MiB of weights to come$", it.status())
        it.reads(0, 300)  # what Python imports is no weights
        assert re.search(r", 3\d\d MiB read, 640 MiB of weights to come$", it.status())
        it.logs("[2026-11-30 04:08:05] Load weight begin. avail mem=21.5 GB")
        assert weights_read(it.status(), 640) < 50
        it.reads(0, 320)
        status = it.status()
        assert status.startswith("loading weights, ")
        assert 320 <= weights_read(status, 640) < 370
        it.reads(0, 640)
        assert it.status().endswith(", all 640 MiB of weights read"), "never more than there are"
        it.logs("[2026-11-30 04:08:30] Capture cuda graph begin. This can take up to minutes")
        assert re.match(r"compiling, \d+ s, 640 MiB of weights loaded$", it.status())


def test_where_the_bytes_are_not_known_it_says_what_was_read(tmp_path: Path) -> None:
    with played(["sh"], tmp_path, None) as it:
        it.reads(0, 64)
        it.logs("[2026-11-30 04:08:05] Load weight begin. avail mem=21.5 GB")
        assert re.match(r"loading weights, \d+ s, \d+ MiB read$", it.status())


def test_ranks_that_each_read_all_files_do_not_look_further_than_they_are(tmp_path: Path) -> None:
    with played(["sh"], tmp_path, 640 * MIB, ranks=2) as it:
        it.logs("[2026-11-30 04:08:05] Load weight begin. avail mem=21.5 GB")
        it.status()
        for rank in (0, 1):
            it.reads(rank, 400)
        assert 400 <= weights_read(it.status(), 640) < 450, "not 800"


def test_phases_do_not_go_back_when_a_draft_model_loads(shell: list[str], tmp_path: Path) -> None:
    load = "[2026-11-30 04:08:05] Load weight begin. avail mem=21.5 GB"
    with played(shell, tmp_path, None) as it:
        it.logs(load)
        assert it.status().startswith("loading weights")
        it.logs("[2026-11-30 04:08:30] Capture cuda graph begin. This can take up to minutes", load)
        assert it.status().startswith("compiling")
        it.logs(*[load] * 500)  # now the end of the log has nothing else
        assert it.status().startswith("compiling")
        it.server.kill()
        it.server.wait()
        out, _ = it.gate.communicate(timeout=20)
        assert it.gate.returncode == 1
    assert re.findall(r"ready gate: ([a-z ]+) \(after", out) == ["loading weights", "compiling"]
    assert "in phase: compiling" in out
    assert len(out.splitlines()) == 3, out


@pytest.mark.parametrize("version", sorted(RELEASES))
def test_every_release_has_a_phase_in_which_weights_are_read(version: str) -> None:
    assert "loading weights" in [phase.name for phase in gate_phases(version)]
