"""A run that is cut anywhere is run again and ends as though it had not been; two at once don't mix.

One node with the real SGLang on its CPU device. The connection is dropped by the node's own sshd at
a chosen command; the controller is killed with -9.
"""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from .cutting import CUT_PORT, commands_until_the_cut, cut_at, cut_connections
from .harness.machine import Node
from .harness.registry import Registry
from .site import ROOT, Ran, Site, service, show, wait_for

UNIT = "sglang@chat.service"
LOCK = "/run/sglang/apply.lock"


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host that has the images, with an sshd that cuts."""
    node = node_factory("cut", images=True)
    cut_connections(node)
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(node: Node, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An inventory with one service."""
    data = {"services": [service()], "registry": {"mirrors": {"docker.io": registry.url}}}
    return Site(tmp_path_factory.mktemp("site"), [node], data, port=CUT_PORT)


def change(site: Site, **keys: object) -> None:
    """Write an argument and a limit of the service into the inventory: new texts everywhere."""
    site.data["services"] = [service(**keys)]


BEFORE = {"start_limit": 3000.0}
AFTER = {"start_limit": 3600.0, "shm_size": "1g"}


def serving(node: Node) -> tuple[str, str]:
    """Return the main process of the service and its container, which answers."""
    status = node.run("curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:30000/health").stdout
    assert status == "200"
    pid = show(node, UNIT, "MainPID")["MainPID"]
    return pid, node.run("docker inspect -f '{{.Id}} {{.State.StartedAt}}' sglang-chat").stdout


def end_state(node: Node, number: int) -> str:
    """Return all that an apply leaves on a node, but for what a time or a number is in."""
    listing = (
        "cd / && find etc/systemd/system var/lib/sglang run/sglang -path '*sglang*' "
        "-not -path '*/record.json' -not -path '*/start.json' "
        f"-not -regex '.*/chat/[0-9]+\\(/.*\\)?' -printf '%p %m %u %y %l\\n' | sort; "
        f"cd /var/lib/sglang/deployments/chat/{number} && find . -printf '%P %m %u %y\\n' | sort; "
        "readlink ../current; test -s record.json && echo record; "
        "cat 10-toolkit.conf /etc/systemd/system/sglang@chat.service.d/10-toolkit.conf server.yaml "
        "launch.env container.env; "
        f"systemctl show -p ActiveState,UnitFileState,NeedDaemonReload,NRestarts,DropInPaths {UNIT}; "
        "docker ps -a --format '{{.Names}} {{.Label \"sglang.deployment\"}}'; "
        f"stat -c '%s' {LOCK}"
    )
    out = node.run(listing).stdout
    for text in (
        f"/{number}/",
        f"/{number}:",
        f"deployment {number}:",
        f"deployment={number}",
        f'"{number}"',
    ):
        out = out.replace(text, text.replace(str(number), "N"))
    lines = [line for line in out.splitlines() if "/previous " not in line]
    return "\n".join("N" if line == str(number) else line.replace(f"chat {number}", "chat N")
                     .replace(f" l {number}", " l N") for line in lines)  # fmt: skip


@pytest.fixture(scope="module")
def uncut(site: Site, node: Node) -> str:
    """What an apply that nobody cut leaves."""
    change(site, **BEFORE)
    assert site.tool("apply").code == 0
    return end_state(node, 1)


BEFORE_THE_SWITCH = (
    "sglang-survey",
    "check the weights of chat",
    "write /var/lib/sglang/deployments/chat/2",
    "try chat",
)
"""What an apply does on this node before it switches, one remote command each."""


@pytest.mark.parametrize(
    ("when", "name"),
    [
        *((when, name) for name in BEFORE_THE_SWITCH for when in ("before", "begun", "ended")),
        ("before", "switch chat"),
    ],
)
def test_a_run_cut_before_the_switch_leaves_the_service_as_it_was(
    site: Site, node: Node, uncut: str, when: str, name: str
) -> None:
    before = serving(node)
    change(site, **AFTER)
    cut_at(node, when, name)
    ran = site.tool("apply")
    assert ran.code == 1
    assert "Traceback" not in ran.err
    assert name in commands_until_the_cut(node)[-1]
    assert serving(node) == before
    cut_at(node)


def test_a_run_cut_between_the_rename_and_the_restart_is_named(
    site: Site, node: Node, uncut: str
) -> None:
    before = serving(node)
    cut_at(node, "killed-at-2", "switch chat")
    assert site.tool("apply").code == 1
    assert serving(node) == before
    cut_at(node)
    told = "its container still runs deployment 1, the current one is 2"
    assert told in site.tool("status").out
    plan = site.tool("plan", "--json").document["nodes"][0]
    assert plan["changes"][-1]["kind"] == "restart"
    assert told in plan["changes"][-1]["why"]


def test_a_run_cut_while_the_service_restarts_leaves_systemd_at_work(
    site: Site, node: Node, uncut: str
) -> None:
    cut_at(node, "begun", "switch chat")
    ran = site.tool("apply")
    assert ran.code == 1
    label = "docker inspect -f '{{index .Config.Labels \"sglang.deployment\"}}' sglang-chat"
    node.run(f'for i in $(seq 300); do [ "$({label})" = 2 ] && exit; sleep 0.5; done; exit 1')
    wait_for(node, UNIT, ActiveState="active")
    assert show(node, UNIT, "NeedDaemonReload") == {"NeedDaemonReload": "no"}


@pytest.mark.parametrize("name", ["verify chat", "record chat"])
@pytest.mark.parametrize("when", ["before", "ended"])
def test_a_run_cut_after_the_start_is_ended_by_the_next_one(
    site: Site, node: Node, uncut: str, when: str, name: str
) -> None:
    before = serving(node)
    # So it is after a cut at the verify: what runs was never verified.
    node.run("rm -f /var/lib/sglang/deployments/chat/current/record.json")
    cut_at(node, when, name)
    ran = site.tool("apply")
    assert name in commands_until_the_cut(node)[-1]
    assert ran.code == 1
    assert serving(node) == before
    cut_at(node)
    assert site.tool("apply").code == 0
    assert site.tool("plan", "--check").code == 0
    assert node.run("cat /var/lib/sglang/deployments/chat/current/record.json").stdout


def started(site: Site, *words: str, user: str) -> subprocess.Popen[str]:
    """Begin an apply as somebody."""
    site.write()
    return subprocess.Popen(
        [sys.executable, "-m", "cli", "apply", str(site.inventory), *words],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "LOGNAME": user},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(process: subprocess.Popen[str], words: str) -> None:
    """Read what a run says until it says these words."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"the run ended without a word of {words!r}")


def killed(process: subprocess.Popen[str]) -> None:
    """Kill the controller with -9."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def second_apply(site: Site, folder: Path) -> Ran:
    """Run another apply, of somebody else with other wishes, over the same node."""
    other = replace(site, folder=folder, data=copy.deepcopy(site.data))
    other.data["services"] = [service(**BEFORE, shm_size="2g")]
    (folder / "sglang.lock").write_text((site.folder / "sglang.lock").read_text())
    other.environment = {"LOGNAME": "bob"}
    return other.tool("apply")


def test_a_controller_that_is_killed_in_any_phase_leaves_a_node_that_is_applied_again(
    site: Site, node: Node, uncut: str, tmp_path: Path
) -> None:
    change(site, **BEFORE)
    before = serving(node)
    first = started(site, "-vv", user="alice")
    until(first, "sglang-survey")
    killed(first)
    second = started(site, user="alice")
    until(second, "Write the deployment")
    killed(second)
    assert serving(node) == before

    third = started(site, user="alice")
    until(third, "Restart chat")
    node.run(f"for i in $(seq 100); do [ -s {LOCK} ] && exit; sleep 0.1; done; exit 1")
    wait_for(node, UNIT, ActiveState="activating")
    # While it runs, another apply is told whose it is and since when, and does nothing.
    ran = second_apply(site, tmp_path)
    assert ran.code == 3
    assert "APPLY_RUNNING" in ran.out
    assert "apply of alice@" in ran.out
    assert f"(pid {third.pid}) since 20" in ran.out
    killed(third)

    # The dead one's lock holds up nobody: not even while what it began still goes on.
    ran = site.tool("apply")
    assert ran.code == 0
    assert "ready, and it generates" in ran.out
    ran = site.tool("plan", "--check")
    assert (ran.code, "unchanged, ready" in ran.out) == (0, True)
    number = int(node.run("readlink /var/lib/sglang/deployments/chat/current").stdout)
    assert number == 3
    assert end_state(node, number) == uncut


DROP_INS = f"/etc/systemd/system/{UNIT}.d"


def drift_of(site: Site) -> str:
    """Return what the status says of drift."""
    return str(site.tool("status", "--json").document["nodes"][0]["services"][0]["drift"])


def test_a_foreign_drop_in_is_named_by_what_it_sets_and_kept(
    site: Site, node: Node, uncut: str
) -> None:
    text = "[Service]\nKillMode=control-group\nEnvironment=TOKEN=hunter2\n"
    node.put(f"{DROP_INS}/50-mine.conf", text)
    node.run("systemctl daemon-reload")
    assert "50-mine.conf sets Service.KillMode, which the toolkit relies on" in drift_of(site)
    ran = site.tool("plan", "--check", "-vvv")
    assert (ran.code, "DROP_IN_OVERRIDES" in ran.out) == (0, True)
    assert "hunter2" not in ran.out + ran.err
    node.put(f"{DROP_INS}/50-mine.conf", text.replace("control-group", "mixed"))
    assert "needs daemon-reload" in drift_of(site)
    ran = site.tool("plan")
    assert "NEED_DAEMON_RELOAD" in ran.out
    assert "~ daemon-reload  systemctl daemon-reload" in ran.out
    node.run(f"rm {DROP_INS}/50-mine.conf; systemctl daemon-reload")


@pytest.mark.parametrize(
    ("done", "told", "code", "undone"),
    [
        (
            "cp /etc/systemd/system/sglang@.service /run/systemd/system/sglang@chat.service",
            "overridden: /run/systemd/system/sglang@chat.service",
            "UNIT_OVERRIDDEN",
            "rm /run/systemd/system/sglang@chat.service",
        ),
        (f"systemctl mask {UNIT}", "masked", "UNIT_MASKED", f"systemctl unmask {UNIT}"),
        (
            f"echo '# mine' >> {DROP_INS}/10-toolkit.conf",
            f"edited: {DROP_INS}/10-toolkit.conf",
            "FILE_EDITED",
            f"sed -i '/^# mine$/d' {DROP_INS}/10-toolkit.conf",
        ),
    ],
)
def test_what_somebody_changed_is_named_and_refused(
    site: Site, node: Node, uncut: str, done: str, told: str, code: str, undone: str
) -> None:
    before = serving(node)
    node.run(f"{done} && systemctl daemon-reload")
    assert told in drift_of(site)
    ran = site.tool("apply")
    assert (ran.code, code in ran.out) == (3, True)
    node.run(f"{undone}; systemctl daemon-reload")
    assert serving(node) == before
    assert "unchanged, ready" in site.tool("plan").out
