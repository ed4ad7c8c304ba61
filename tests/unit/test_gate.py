"""The ready gate itself, run under the nodes' shells: systemd, Docker and the log are played."""

from __future__ import annotations

import os
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
from plans.plan import NodePlan
from releases.table import RELEASES
from tests.unit.deployments import CAP, one, plan
from tests.unit.surveys import wishes
from tests.unit.wheels import wheel_plan

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


ANSWER = """{"data": [{"id": "Qwen/Qwen3-8B"}], "usage": {"completion_tokens": 1}}
200
"""
"""What a server that is up says, to whatever it is asked."""


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
        until = time.monotonic() + 60
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
    shell: list[str],
    directory: Path,
    model_bytes: int | None,
    ranks: int = 1,
    made: NodePlan | None = None,
    silence: int = 900,
    counters: Path | None = None,
) -> Iterator[Played]:
    """Run the gate of a new deployment on a node that starts its server.

    Where it is no container's, the unit's control group has the gate in it too. ``counters``: a
    directory that says in the place of /proc what processes read.
    """
    here, bin_ = directory / "chat" / "1", directory / "bin"
    here.mkdir(parents=True)
    bin_.mkdir()
    groups = directory / "cgroup"
    for file in one(made or plan()).files:
        if file.link is None:
            text = file.text.replace("/sys/fs/cgroup /sys", f"{groups} /sys")
            text = text.replace("/run/sglang", f"{directory}/run/sglang")
            if counters is not None:
                text = text.replace("/proc/$pid/", f"{counters}/$pid/")
            (here / file.path.rsplit("/", 1)[1]).write_text(text)
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
    stand_in(bin_, "journalctl", f"tail -n 1000 {log}")
    stand_in(bin_, "systemctl", "read -r up _ </proc/uptime; echo $((${up%%.*} * 1000000))")
    stand_in(bin_, "systemd-notify", f"printf '%s\\n' \"$@\" >>{told}")
    (directory / "answer").write_text("\n000\n")
    stand_in(bin_, "curl", f"cat {directory}/answer")
    stand_in(bin_, "sleep", "exec /bin/sleep 0.02")
    environment = {
        "PATH": f"{bin_}:/usr/bin:/bin",
        "MAINPID": str(server.pid),
        "SGLANG_PROBE_HOST": "127.0.0.1",
        "SGLANG_PORT": "1",
        "SGLANG_READY_PATH": "/ready",
        "SGLANG_MODEL_ID_JSON": '"Qwen/Qwen3-8B"',
        "SGLANG_PROBE_PATH": "/v1/chat/completions",
        "SGLANG_PROBE_EXPECT": "completion_tokens",
        "SGLANG_SILENCE_LIMIT": str(silence),
        "SGLANG_MODEL_BYTES": "" if model_bytes is None else str(model_bytes),
    }
    gate = subprocess.Popen(
        [*shell, str(here / "ready-gate")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    if made is not None:
        own = next(
            line.split(":", 2)[2]
            for line in Path(f"/proc/{server.pid}/cgroup").read_text().splitlines()
            if line.startswith(("0::", "1:name=systemd:"))
        )
        group = groups / own.strip("/")
        group.mkdir(parents=True)
        inside = [gate.pid, server.pid, *(one.pid for one in readers)]
        (group / "new").write_text("".join(f"{pid}\n" for pid in inside))
        (group / "new").rename(group / "cgroup.procs")
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


def test_without_a_container_the_processes_of_the_unit_are_counted(
    shell: list[str], tmp_path: Path
) -> None:
    with played(shell, tmp_path, None, made=wheel_plan()) as it:
        it.reads(0, 300)
        found = re.search(r", (\d+) MiB read$", it.status())
        assert found is not None
        assert 300 <= int(found[1]) < 340


def test_what_the_gate_itself_reads_is_no_progress(shell: list[str], tmp_path: Path) -> None:
    made = wheel_plan(wanted=wishes(CAP | {"silence_limit": 2.0}))
    with played(shell, tmp_path, None, made=made) as it:
        out, _ = it.gate.communicate(timeout=60)
        assert it.gate.returncode == 1
        assert "nothing logged and next to nothing read for" in out


def test_what_a_server_that_hangs_reads_of_its_own_processes_is_no_progress(
    shell: list[str], tmp_path: Path
) -> None:
    made = wheel_plan(wanted=wishes(CAP | {"silence_limit": 2.0}))
    with played(shell, tmp_path, None, made=made) as it:
        until = time.monotonic() + 30
        while it.gate.poll() is None and time.monotonic() < until:
            it.reads(0, 0)  # it reads what it is told, a few bytes
            time.sleep(0.05)
        assert it.gate.poll() == 1
        assert it.gate.stdout is not None
        assert "nothing logged and next to nothing read for" in it.gate.stdout.read()


NOISE = [
    '[2026-12-01 02:01:05] INFO:     172.17.0.1:35104 - "GET /ready HTTP/1.1" 503 Service Unavailable',
    '[2026-12-01 01:05:41] INFO:     10.213.0.4:47368 - "PRI %2A HTTP/2.0" 404 Not Found',
    "[2026-12-01 01:05:41] WARNING:  Invalid HTTP request received.",
    "[2026-12-01 02:01:06] Prefill batch, #new-seq: 1, #new-token: 9, #cached-token: 0",
    "[   12.345678] gpu-a sglang-chat[439]: ready gate: no answer yet: ",
]


def test_what_is_logged_of_requests_and_by_the_gate_itself_is_no_progress(
    shell: list[str], tmp_path: Path
) -> None:
    made = wheel_plan(wanted=wishes(CAP | {"silence_limit": 2.0}))
    with played(shell, tmp_path, None, made=made) as it:
        until, number = time.monotonic() + 30, 0
        while it.gate.poll() is None and time.monotonic() < until:
            number += 1
            it.logs(f"{NOISE[number % len(NOISE)]} {number}")
            time.sleep(0.05)
        assert it.gate.poll() == 1


@pytest.mark.parametrize(("pages", "code"), [(16, None), (0, 1)])
def test_weights_that_are_mapped_from_a_network_are_seen_by_their_page_faults(
    tmp_path: Path, pages: int, code: int | None
) -> None:
    counters = tmp_path / "proc"
    with played(["sh"], tmp_path, None, silence=5, counters=counters) as it:
        there = counters / str(it.ranks[0].pid)
        there.mkdir(parents=True)
        (there / "io").write_text("rchar: 5000\nread_bytes: 0\n")
        for number in range(32):
            faults = f"7 (a) b) S 1 1 1 0 -1 4194304 900 0 {number * pages} 0 50 20 0"
            (there / "new").write_text(f"{faults}\n")
            (there / "new").rename(there / "stat")
            time.sleep(0.25)
        assert it.gate.poll() == code


@pytest.mark.parametrize("what", ["logs", "reads", "compiles"])
def test_a_start_that_reads_or_compiles_without_a_word_goes_on(tmp_path: Path, what: str) -> None:
    made = wheel_plan(wanted=wishes(CAP | {"silence_limit": 5.0}))
    with played(["sh"], tmp_path, None, made=made) as it:
        it.status()
        (group,) = (tmp_path / "cgroup").rglob("cgroup.procs")
        inside = group.read_text()
        for number in range(16):
            if what == "logs":
                it.logs(
                    f"[2026-11-30 04:08:05] Loading safetensors checkpoint shards: {number}", *NOISE
                )
            elif what == "reads":
                it.reads(0, 1)
            else:
                compilers = f"{os.getpid()}\n" * number
                (group.parent / "new").write_text(inside + compilers)
                (group.parent / "new").rename(group)
            time.sleep(0.5)
        assert it.gate.poll() is None


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
        out, _ = it.gate.communicate(timeout=60)
        assert it.gate.returncode == 1
    assert re.findall(r"ready gate: ([a-z ]+) \(after", out) == ["loading weights", "compiling"]
    assert "in phase: compiling" in out
    assert len(out.splitlines()) == 3, out


@pytest.mark.parametrize("made", [None, wheel_plan()], ids=["image", "wheel"])
@pytest.mark.parametrize(("why", "stays"), [("passing", False), ("held", True)])
def test_a_first_answer_lets_the_server_back_in_at_the_door_unless_somebody_holds_it_out(
    shell: list[str], tmp_path: Path, why: str, stays: bool, made: NodePlan | None
) -> None:
    out = tmp_path / "run/sglang/door/chat"
    out.parent.mkdir(parents=True)
    out.write_text(f"{why}\n")
    with played(shell, tmp_path, None, made=made) as it:
        it.status()
        assert out.exists(), "nothing was generated yet"
        new = tmp_path / "answer.new"
        new.write_text(ANSWER)
        new.rename(tmp_path / "answer")
        it.gate.communicate(timeout=60)
        assert it.gate.returncode == 0
    assert out.exists() == stays


@pytest.mark.parametrize("version", sorted(RELEASES))
def test_every_release_has_a_phase_in_which_weights_are_read(version: str) -> None:
    assert "loading weights" in [phase.name for phase in gate_phases(version)]
