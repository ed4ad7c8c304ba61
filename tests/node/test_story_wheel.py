"""A host with nothing but a driver serves a model from a lock of packages: the whole story.

The node has no compiler, no headers, no Docker and no internet. Packages, Pythons and the
distribution's own come from a mirror; SGLang is the real one on its CPU device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from .harness.machine import Node
from .harness.mirror import Mirror
from .site import (
    COUNTED_PORT,
    Site,
    commands_of,
    count_commands,
    show,
    stream,
    wait_for,
    wheel_service,
)

UNIT = "sglang@chat.service"
ENVIRONMENTS = "/opt/sglang/environments"

# Writes when the server answered that it is ready, and when it did not, five times a second.
POLL = """\
#!/bin/sh
while :; do
    code=$(curl -s -o /dev/null -m 20 -w '%{http_code}' http://127.0.0.1:30000/ready)
    echo "$(date +%s.%N) $code" >>/root/polled
    sleep 0.2
done
"""


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A Debian 12 host with an L4 and its driver, and nothing else."""
    node = node_factory("bare", tree_name="fresh")
    count_commands(node)
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(node: Node, mirror: Mirror, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An inventory with one service, and the mirror for all that it needs."""
    return Site(
        tmp_path_factory.mktemp("site"),
        [node],
        {
            "services": [wheel_service()],
            "mirrors": mirror.keys,
            "wheel_lock": str(mirror.locks["0.5.22"]),
        },
        port=COUNTED_PORT,
    )


def current(node: Node) -> str:
    """The path of the environment that the server's process runs on."""
    pid = show(node, UNIT, "MainPID")["MainPID"]
    (path,) = (
        line.partition("=")[2].split(":")[0].removesuffix("/bin")
        for line in node.run(f"tr '\\0' '\\n' </proc/{pid}/environ").stdout.splitlines()
        if line.startswith("PATH=")
    )
    return path


def test_the_host_has_none_of_what_is_needed(node: Node) -> None:
    for program in ("docker", "g++", "c++", "gcc", "ninja", "uv"):
        assert node.run(f"command -v {program}", check=False).returncode != 0, program
    assert node.run("ls /usr/include/python3*", check=False).returncode != 0
    assert node.run("getent passwd sglang", check=False).returncode != 0
    assert "libcuda.so.1" in node.run("ldconfig -p").stdout


def test_auto_takes_packages_and_says_why(site: Site, node: Node) -> None:
    commands_of(node)
    ran = site.tool("plan", "--json")
    assert ran.code == 0
    (planned,) = ran.document["nodes"]
    assert planned["decision"] == "wheel"
    assert planned["release"] == "0.5.22"
    assert planned["refusals"] == []
    kinds = [change["kind"] for change in planned["changes"]]
    assert "environment" in kinds
    assert kinds.index("environment") < kinds.index("start")
    assert len(commands_of(node)) == 1
    assert node.run(f"ls -A {ENVIRONMENTS}", check=False).stdout == ""


def test_apply_ends_with_a_server_that_generates(site: Site, node: Node) -> None:
    ran = site.tool("apply", timeout=900)
    assert ran.code == 0
    assert "ready, and it generates" in ran.out
    state = show(node, UNIT, "ActiveState", "StatusText", "NRestarts")
    assert state["ActiveState"] == "active"
    assert state["StatusText"].startswith("ready since")
    assert state["NRestarts"] == "0"
    record = json.loads(node.read("/var/lib/sglang/deployments/chat/1/record.json"))
    assert record["result"] == "ready, and it generates"
    assert record["server_version"] == "0.5.22"


def test_the_server_is_the_main_process_and_nobodys_but_sglangs(node: Node) -> None:
    pid = show(node, UNIT, "MainPID")["MainPID"]
    assert node.run(f"ps -o user= -p {pid}").stdout.split() == ["sglang"]
    words = node.run(f"tr '\\0' '\\n' </proc/{pid}/cmdline").stdout.split("\n")
    # SGLang gives its processes names of their own; what runs is Python in any case.
    assert "sh" not in words[0].split("/")
    program = node.run(f"readlink /proc/{pid}/exe").stdout
    assert program.startswith("/opt/sglang/python/")
    assert current(node).startswith(f"{ENVIRONMENTS}/")
    assert "/current" not in current(node)
    shell = node.run("getent passwd sglang").stdout.strip().rpartition(":")[2]
    assert shell.endswith(("nologin", "false"))


def test_the_environment_is_what_the_lock_says(node: Node, mirror: Mirror) -> None:
    python = f"{current(node)}/bin/python3"
    code = (
        "import importlib.metadata as m; print(*(d.name + '==' + d.version "
        "for d in m.distributions()), sep='\\n')"
    )
    there = {
        line.lower().replace("_", "-")
        for line in node.run(f'{python} -I -c "{code}"').stdout.split()
    }
    lock = mirror.locks["0.5.22"].read_text(encoding="utf-8")
    assert there == {
        line.split()[0] for line in lock.splitlines() if "==" in line[:60] and line[0].isalnum()
    }
    headers = "import sysconfig; print(sysconfig.get_paths()['include'])"
    include = node.run(f'{python} -I -c "{headers}"').stdout.strip()
    assert node.run(f"test -f {include}/Python.h", check=False).returncode == 0


def test_a_second_apply_and_a_plan_change_nothing_and_cost_one_command(
    site: Site, node: Node, mirror: Mirror
) -> None:
    commands_of(node)
    mirror.requests()
    before = show(node, UNIT, "MainPID", "InvocationID")
    ran = site.tool("apply")
    assert ran.code == 0
    assert "unchanged, ready" in ran.out
    assert len(commands_of(node)) == 1
    ran = site.tool("plan", "--check")
    assert ran.code == 0
    assert "unchanged, ready" in ran.out
    assert len(commands_of(node)) == 1
    assert show(node, UNIT, "MainPID", "InvocationID") == before
    assert mirror.requests() == []


def test_status_says_that_it_is_ready(site: Site) -> None:
    ran = site.tool("status")
    assert ran.code == 0
    line = ran.out.splitlines()[1].split()
    assert line[1:5] == ["chat", "0.5.22", "wheel", "ready"]


def test_a_stream_in_flight_survives_a_restart_whole(site: Site, node: Node) -> None:
    running = stream(node, 3000)
    ran = site.tool("restart")
    tokens, done = running.finish()
    assert (tokens, done) == (3000, True)
    assert ran.code == 0
    assert "drained: the log says that no request remained" in ran.err
    log = node.run(f"journalctl -u {UNIT} -o cat --no-pager").stdout
    assert "Remaining number of requests 0" in log
    assert "crashed with exit code -15" not in log


def test_a_rebooted_node_serves_again_by_itself(site: Site, node: Node) -> None:
    node.reboot()
    wait_for(node, UNIT, ActiveState="active")
    assert site.tool("verify").code == 0
    assert "unchanged, ready" in site.tool("plan").out


def test_a_new_environment_is_made_while_the_old_one_serves(
    site: Site, node: Node, mirror: Mirror
) -> None:
    old = current(node)
    site.data["wheel_lock"] = str(mirror.locks["0.5.23"])
    site.data["services"][0]["release"] = "0.5.23"
    node.put("/root/poll", POLL, 0o755)
    node.run("systemd-run --quiet --unit=poll /root/poll")
    ran = site.tool("apply", timeout=900)
    node.run("systemctl stop poll")
    assert ran.code == 0
    assert "ready, and it generates" in ran.out
    new = current(node)
    assert new != old
    assert site.tool("status").out.splitlines()[1].split()[2] == "0.5.23"

    polled = [line.split() for line in node.read("/root/polled").splitlines()]
    down = [float(when) for when, code in polled if code != "200"]
    up = [float(when) for when, code in polled if code == "200"]
    made = float(node.run(f"stat -c %.Z {new}").stdout)
    assert up[0] < made, "nothing was polled before the environment was made"
    assert down[0] > made, "it was down while the environment was made"
    # From then on it is away for one restart, no longer: the new server is up once and for all.
    assert [when for when in up if down[0] < when < down[-1]] == []
    started = json.loads(node.read("/var/lib/sglang/deployments/chat/2/record.json"))
    print(
        f"down for {down[-1] - down[0]:.1f} s of {float(polled[-1][0]) - float(polled[0][0]):.1f}"
    )
    assert down[-1] - down[0] < started["first_answer_seconds"] + 30


def test_remove_takes_the_service_and_says_what_it_keeps(site: Site, node: Node) -> None:
    ran = site.tool("remove", "--yes")
    assert ran.code == 0
    left = node.run(
        "find /etc/systemd/system /var/lib/sglang /var/cache/sglang /opt/sglang /run/sglang "
        "-path '*sglang*' -not -type d 2>/dev/null | sort"
    ).stdout.splitlines()
    roots = [word.rstrip(".,:;") for word in ran.out.split() if word.startswith("/")]
    for path in left:
        assert any(path == root or path.startswith(f"{root.rstrip('/')}/") for root in roots), path
    assert node.run(f"systemctl is-enabled {UNIT}", check=False).stdout.strip() != "enabled"
    assert node.run("pgrep -u sglang", check=False).stdout == ""
