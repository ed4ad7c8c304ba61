"""The stop gate itself, run by real shells over real packet filters in a network of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from plans import paths
from plans.launch import TEMPLATES, render, stop_gate
from plans.stopgate import shuts, stop_gate_data
from tests.unit.deployments import CAP, one, plan
from tests.unit.surveys import wishes
from tests.unit.test_scripts import need

ROOT = Path(__file__).parents[2]
BASIC = (
    "sh", "tr", "sed", "head", "tail", "cat", "rm", "mkdir", "date", "sleep", "grep", "curl",
    "timeout", "echo", "printf", "stat",
)  # fmt: skip
TOOLS = {"nft": ("nft",), "iptables": ("iptables", "ip6tables"), "neither": ()}


def tools(directory: Path, name: str) -> str:
    """Return a PATH that has what every system has, and of the packet filters just these."""
    there = directory / name
    there.mkdir()
    for program in (*BASIC, *TOOLS[name]):
        found = shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin")
        if found is None and program not in BASIC:
            need(program)
        (there / program).symlink_to(found or program)
    return str(there)


def stopped(tmp_path: Path, listens: str, tool: str) -> dict[str, Any]:
    """Return what happened when a server that listens there was stopped."""
    if os.geteuid() != 0:
        pytest.skip("not root")
    need("unshare")
    need("nft")
    gate = gate_of(tmp_path)
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "tests.unit.shut_scenario", str(gate), listens,
         tools(tmp_path, tool)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Unready:
    """A server that was marked unhealthy; a health generation mends it, the first time or later."""

    def __init__(self, fails: int) -> None:
        self.fails = fails
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                mends = self.path == "/health_generate" and len(outer.asked) > outer.fails + 1
                self.send_response(200 if mends else 503)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def gate_of(tmp_path: Path, **data: object) -> Path:
    """Write a stop gate that keeps its files here."""
    gate = tmp_path / "stop-gate"
    http = (TEMPLATES / "http.sh").read_text(encoding="utf-8")
    data = {**stop_gate_data("chat"), "run": str(tmp_path / "run"), **data}
    gate.write_text(render("stop-gate.sh.j2", http=http, **data), encoding="utf-8")
    return gate


def run_gate(gate: Path, word: str, path: str, **environment: str) -> str:
    done = subprocess.run(
        ["sh", str(gate), word],
        env={"PATH": path, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="not root, whose the gate's directory is")
def test_the_first_start_after_a_boot_leaves_the_directory_open_to_the_service_s_user(
    tmp_path: Path,
) -> None:
    gate = gate_of(tmp_path)
    before = os.umask(0o077)  # as the wheel runtime's unit has it
    try:
        run_gate(gate, "open", tools(tmp_path, "neither"), SGLANG_DEPLOYMENT="1")
    finally:
        os.umask(before)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("fails", [0, 2])
def test_a_server_that_is_marked_unready_is_mended_before_the_signal(
    tmp_path: Path, fails: int
) -> None:
    unready = Unready(fails)
    main = subprocess.Popen(
        ["sleep", "60"],
        env={"PATH": "/bin:/usr/bin", "SGLANG_PORT": str(unready.server.server_port),
             "SGLANG_READY_PATH": "/ready"},
    )  # fmt: skip
    try:
        said = run_gate(
            gate_of(tmp_path), "shut", tools(tmp_path, "neither"), MAINPID=str(main.pid)
        )
    finally:
        main.kill()
        main.wait()
        unready.server.shutdown()
    assert unready.asked == ["/ready", *["/health_generate"] * (fails + 1)]
    assert "it has generated and is ready again" in said


def test_one_that_stays_unready_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    unready = Unready(fails=1000)
    main = subprocess.Popen(
        ["sleep", "60"],
        env={"PATH": "/bin:/usr/bin", "SGLANG_PORT": str(unready.server.server_port)},
    )
    gate = gate_of(tmp_path, patience=2)
    try:
        said = run_gate(gate, "shut", tools(tmp_path, "neither"), MAINPID=str(main.pid))
    finally:
        main.kill()
        main.wait()
        unready.server.shutdown()
    assert "it stays unready after 2 s: what is in flight may be lost" in said


def test_a_server_that_ended_by_itself_is_asked_nothing(tmp_path: Path) -> None:
    assert run_gate(gate_of(tmp_path), "shut", tools(tmp_path, "neither")) == ""


def test_what_is_left_of_a_server_is_named(tmp_path: Path) -> None:
    gate, path = gate_of(tmp_path, tries=2), tools(tmp_path, "neither")
    left = subprocess.Popen(["sleep", "60"])
    began = Path(f"/proc/{left.pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    (tmp_path / "run").mkdir()
    lines = f"{left.pid} {began} sleep\n{left.pid} 1 another\n4194303 1 gone\n"
    (tmp_path / "run" / "stopping.chat").write_text(lines)
    smi = Path(path) / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '4194303, 512'; echo '1, 99'\n")
    smi.chmod(0o755)
    try:
        said = run_gate(gate, "after", path).splitlines()
    finally:
        left.kill()
        left.wait()
    of = "of the server that was stopped"
    assert said == [
        f"stop gate: left over: process {left.pid} (sleep) {of}",
        f"stop gate: left over: 512 MiB of GPU memory under process 4194303 {of}",
    ]
    assert list((tmp_path / "run").iterdir()) == []


def test_an_nvidia_smi_that_cannot_be_ended_is_not_waited_for(tmp_path: Path) -> None:
    path = tools(tmp_path, "neither")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stopping.chat").write_text("4194303 1 gone\n")
    smi = Path(path) / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ntrap '' TERM\necho $$ >{tmp_path}/pid\nexec sleep 40\n")
    smi.chmod(0o755)
    began = time.monotonic()
    try:
        said = run_gate(gate_of(tmp_path), "after", path)
        assert time.monotonic() - began < 15
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    of = "nvidia-smi does not say what GPU memory is held"
    assert said == f"stop gate: no process of it is left; {of}\n"
    assert list((tmp_path / "run").iterdir()) == []


def test_nothing_left_is_said_too(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stopping.chat").write_text("4194303 1 gone\n")
    said = run_gate(gate_of(tmp_path), "after", tools(tmp_path, "neither"))
    assert said == "stop gate: no process of it is left\n"


@pytest.mark.parametrize("tool", ["nft", "iptables"])
@pytest.mark.parametrize("listens", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_what_is_in_flight_is_finished_and_nothing_new_comes_in(
    tmp_path: Path, listens: str, tool: str
) -> None:
    found = stopped(tmp_path, listens, tool)
    assert found["new"] == "refused"
    assert found["other"] == "accepted"
    assert found["slow"] == "part\n" * 6
    # A request on a connection that is open does not reach the server either.
    assert found["late"] == "TimeoutError"
    assert sorted(found["seen"]) == ["/kept", "/ready", "/slow"]
    assert f"(by {tool})" in found["said"][-1]
    # Told twice it leaves no moment in which something comes in.
    assert found["again"][1:] == ["stop gate: its ready endpoint says nothing before the stop"]


@pytest.mark.parametrize("tool", ["nft", "iptables"])
def test_after_the_stop_no_rule_is_left(tmp_path: Path, tool: str) -> None:
    found = stopped(tmp_path, "127.0.0.1", tool)
    assert found["opened"] == "accepted"
    assert found["left"] is False
    assert list((tmp_path / "run").iterdir()) == []


def test_where_neither_is_there_it_says_so_and_goes_on(tmp_path: Path) -> None:
    found = stopped(tmp_path, "127.0.0.1", "neither")
    assert found["new"] == "accepted"
    said = "\n".join(found["said"])
    assert "neither nft nor iptables is there" in said
    assert "take the service out of your load balancer first" in said


def test_a_server_that_speaks_http_2_keeps_its_open_connections() -> None:
    assert shuts({}) == "requests"
    assert shuts({"enable-http2": True}) == "connections"
    assert shuts({"grpc_mode": True}) == "connections"
    assert shuts({"enable-http2": False}) == "requests"


def test_the_unit_runs_it_before_the_signal_and_after_the_end() -> None:
    unit = (TEMPLATES / paths.UNIT_NAME).read_text(encoding="utf-8")
    gate = f"-/bin/sh {paths.current('%i')}/{paths.STOP_GATE}"
    for line in (
        f"ExecStartPre={gate} open",
        f"ExecStop={gate} shut",
        f"ExecStopPost={gate} after",
    ):
        assert line in unit.splitlines()
    assert unit.index("ExecStopPost=/bin/sh -c") < unit.index(f"ExecStopPost={gate}")


def test_a_deployment_has_it_and_says_what_it_shuts() -> None:
    made = one(plan(wanted=wishes(CAP | {"arguments": {"enable-http2": True}})))
    files = {file.path.rsplit("/", 1)[1]: file.text for file in made.files}
    assert files[paths.STOP_GATE] == stop_gate("chat")
    assert 'SGLANG_SHUTS="connections"' in files[paths.LAUNCH_ENV]
