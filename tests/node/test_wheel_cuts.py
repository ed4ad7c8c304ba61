"""The install of a wheel runtime, killed at any point: the next run ends whole, and the service
that ran before serves on. Its key is nowhere, and what somebody changed is named.

One node with the real SGLang on its CPU device, which starts twice in all. The first install is
cut up to the weights; the change to another lock is cut from there on, and within the build.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from releases.wheels import read_lock, write_lock

from .cutting import CUT_PORT, commands_until_the_cut, cut_at, cut_connections
from .harness.machine import Node
from .harness.mirror import Mirror
from .site import ROOT, Site, show, wait_for, wheel_service
from .watching import nothing_in, watched

UNIT = "sglang@chat.service"
ENVIRONMENTS = "/opt/sglang/environments"
DEPLOYMENTS = "/var/lib/sglang/deployments/chat"
CREDENTIALS = "/etc/sglang/credentials"
LOCK = "/run/sglang/apply.lock"
KEY = f"sk-{secrets.token_hex(24)}"
# Of another lock than the service's: pure Python, and nothing imports it.
ADDED = "tabulate"


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A Debian 12 host with an L4 and its driver and nothing else, with an sshd that cuts."""
    node = node_factory("cutwheel", tree_name="fresh")
    cut_connections(node)
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(node: Node, mirror: Mirror, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An inventory with one service, whose key is in a variable."""
    folder = tmp_path_factory.mktemp("site")
    first = read_lock(mirror.locks["0.5.22"].read_text(encoding="utf-8"))
    other = read_lock(mirror.locks["compile"].read_text(encoding="utf-8"))
    more = tuple(one for one in other.packages if one.name == ADDED)
    packages = tuple(sorted((*first.packages, *more), key=lambda one: one.name))
    changed = write_lock(first.model_copy(update={"packages": packages}))
    (folder / "changed.txt").write_text(changed, encoding="utf-8")
    return Site(
        folder,
        [node],
        {
            "services": [wheel_service(api_key={"env": "SITE_KEY"})],
            "runtime": "wheel",
            "mirrors": mirror.keys,
            "wheel_lock": str(mirror.locks["0.5.22"]),
        },
        port=CUT_PORT,
        environment={"SITE_KEY": KEY},
    )


def cut(site: Site, when: str, name: str) -> None:
    """Run an apply that is cut there."""
    (node,) = site.nodes
    cut_at(node, when, name, lock=True)
    ran = site.tool("apply")
    assert ran.code == 1
    assert "Traceback" not in ran.err
    assert name in commands_until_the_cut(node)[-1]
    cut_at(node, lock=True)


def serving(node: Node) -> str:
    """Return the main process of the service, which answers, and its environment on the node."""
    path = "http://127.0.0.1:30000/ready"
    assert node.run(f"curl -s -o /dev/null -w '%{{http_code}}' {path}").stdout == "200"
    pid = show(node, UNIT, "MainPID")["MainPID"]
    variables = f"tr '\\0' '\\n' </proc/{pid}/environ | grep -E '^SGLANG_(DEPLOYMENT|ENVIRONMENT)='"
    of = node.run(f"{variables} | sort").stdout
    node.run(f"test -e {of.split('=')[-1].strip()}/environment.json")
    return f"{pid} {of}"


def end_state(node: Node, number: int) -> list[str]:
    """Return all that an apply leaves on a node, but for what a time or a number is in."""
    settings = dict(
        line.replace('"', "").split("=", 1)
        for line in node.read(f"{DEPLOYMENTS}/{number}/launch.env").splitlines()
        if "=" in line
    )
    listing = (
        "cd / && find etc/systemd/system etc/sglang var/lib/sglang run/sglang -path '*sglang*' "
        "-not -path '*/record.json' -not -path '*/start.json' -not -path '*/home/*' "
        "-not -path '*/previous' -not -regex '.*/chat/[0-9]+\\([/.].*\\)?' "
        "-printf '%p %m %u %y %l\\n' | sort; "
        f"cd {DEPLOYMENTS}/{number} && find . -printf '%P %m %u %y\\n' | sort; "
        "readlink ../current; test -s record.json && echo record; "
        "cat 10-toolkit.conf /etc/systemd/system/sglang@chat.service.d/10-toolkit.conf server.yaml "
        "launch.env service.env /etc/systemd/system/sglang@chat.service; "
        f"systemctl show -p ActiveState,UnitFileState,NeedDaemonReload,NRestarts,DropInPaths {UNIT}; "
        f"stat -c '%n %s %a %U' {LOCK} /opt/sglang/tools/*; ls /opt/sglang/python; "
        f"cd {settings['SGLANG_ENVIRONMENT']}; "
        "find . -maxdepth 1 -printf '%P %m %u %y\\n' | sort; cat packages.txt; "
        f"ls -A {ENVIRONMENTS} | grep -c '[.]'; ls -d /var/cache/sglang/*canary* /tmp/tmp.* 2>/dev/null"
    )
    out = node.run(f"{listing}; :").stdout
    # What follows from the lock: the environment's key, and with it that of the build's caches.
    for name in ("SGLANG_ENVIRONMENT", "SGLANG_KERNELS"):
        out = out.replace(settings[name].rpartition("/")[2], name)
    ways = (
        "/{}/",
        "/{}:",
        "/{}.",
        'DEPLOYMENT="{}"',
        "deployment {}:",
        "chat {}",
        " l {}",
        "\n{}\n",
    )
    for way in ways:
        out = out.replace(way.format(number), way.format("N"))
    return [line for line in out.splitlines() if not line.startswith(f"{ADDED}-")]


def test_a_node_whose_dpkg_was_killed_is_prepared_all_the_same(site: Site, node: Node) -> None:
    # As a run is killed that installs a compiler for a lock of a GPU.
    node.run(
        "apt-get -qq update; (until ls /var/lib/dpkg/updates | grep -q 3; do sleep 0.1; done; "
        "pkill -9 -x apt-get; pkill -9 -x dpkg) & apt-get -qq -y install g++ >/dev/null 2>&1; wait"
    )
    asked = node.run("apt-get -y install libnuma1", check=False)
    assert "dpkg was interrupted" in asked.stdout + asked.stderr
    cut(site, "ended", "prepare the node")
    assert node.run("dpkg --audit; ls /var/lib/dpkg/updates").stdout == ""


@pytest.mark.parametrize(
    ("when", "name"),
    [
        ("before", "sglang-survey"),
        ("begun", "prepare the node"),
        ("before", "sftp-server"),
        ("begun", "put uv in its place"),
        ("ended", "put uv in its place"),
        ("begun", "make the environment"),
        ("before", "check the weights of chat"),
    ],
)
def test_a_first_install_that_is_cut_leaves_nothing_that_is_taken_for_whole(
    site: Site, node: Node, when: str, name: str
) -> None:
    if (when, name) == ("ended", "put uv in its place"):
        node.run("rm -f /opt/sglang/tools/*")  # what the run before began may have ended
    cut(site, when, name)
    for path in node.run(f"ls -d {ENVIRONMENTS}/* 2>/dev/null; :").stdout.split():
        assert path.endswith(".new") or node.run(f"cat {path}/environment.json").stdout
    assert show(node, UNIT, "LoadState", "ActiveState")["ActiveState"] == "inactive"
    assert node.run(f"ls {DEPLOYMENTS} 2>/dev/null; :").stdout == ""


@pytest.fixture(scope="module")
def first(node: Node) -> list[str]:
    """What the run left that followed on those."""
    return end_state(node, 1)


def test_the_next_run_ends_whole_and_the_key_is_nowhere(site: Site, node: Node) -> None:
    with watched(node, KEY) as found:
        ran = site.tool("apply", "-vvv", "--json", "--diff")
    assert ran.code == 0
    nothing_in(ran, KEY)
    serving(node)
    # The search does find: the one file that has it, for root alone, and what systemd makes of it.
    private = dict(found["private"])
    assert private.pop(f"{CREDENTIALS}/services/chat/1.yaml") == "0o600"
    for path, mode in private.items():
        assert path.startswith("/run/credentials/sglang@chat.service/"), path
        assert mode in ("0o400", "0o440")
    assert any("sglang" in line for line in found["seen"])
    assert found["rounds"] > 50
    clean = {"arguments": {}, "environments": {}, "open": {}, "journal": 0, "units": 0}
    assert clean.items() <= found.items()
    ask = "curl -s -o /dev/null -w '%{http_code}' -H @- http://127.0.0.1:30000/v1/models"
    assert node.run(ask, text="X: y\n").stdout == "401"
    assert node.run(ask, text=f"Authorization: Bearer {KEY}\n").stdout == "200"
    assert site.tool("plan", "--check").code == 0


@pytest.mark.parametrize(
    ("when", "name"),
    [
        ("ended", "sglang-survey"),
        ("begun", "prepare the node"),
        ("before", "make the environment"),
        ("begun", "make the environment"),
        ("killed", "make the environment"),
        ("ended", "make the environment"),
        ("begun", "check the weights of chat"),
        ("begun", f"write {DEPLOYMENTS}/2"),
        ("ended", f"write {DEPLOYMENTS}/2"),
        ("begun", f"write {CREDENTIALS}/services/chat/2.yaml"),
        ("begun", "try chat"),
        ("ended", "try chat"),
        ("ended", "judge chat"),
        ("before", "switch chat"),
    ],
)
def test_a_changed_lock_cut_before_the_switch_leaves_the_service_as_it_was(
    site: Site, node: Node, first: list[str], when: str, name: str
) -> None:
    before = serving(node)
    site.data["wheel_lock"] = str(site.folder / "changed.txt")
    if name == "make the environment":
        unmade(node, before.split("=")[-1].strip())
    if when == "killed":
        killed_in_the_build(site, node)
    else:
        cut(site, when, name)
    assert serving(node) == before
    assert node.run(f"readlink {DEPLOYMENTS}/current").stdout.strip() == "1"


def unmade(node: Node, current: str) -> None:
    """Wait until what a cut run began has ended, and take away what it made whole all the same.

    What it left half-made stays, for the next run to find.
    """
    node.run(
        f"flock -w 60 {LOCK} true; for one in {ENVIRONMENTS}/*; do "
        f'case $one in *.new | {current}) ;; *) rm -rf "$one" ;; esac; done'
    )


def killed_in_the_build(site: Site, node: Node) -> None:
    """Begin an apply and kill its controller with -9 as soon as uv installs."""
    cut_at(node, lock=True)
    site.write()
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", "apply", str(site.inventory)],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", **site.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    node.run(
        "for i in $(seq 1200); do pgrep -f '^/opt/sglang/tools/uv-[0-9.]* pip install' && exit; "
        "sleep 0.05; done; exit 1"
    )
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_run_cut_in_the_switch_is_named_and_systemd_ends_what_was_begun(
    site: Site, node: Node, first: list[str]
) -> None:
    before = serving(node)
    cut(site, "killed-at-2", "switch chat")
    assert serving(node) == before
    told = "it still runs deployment 1, the current one is 2"
    assert told in site.tool("status").out
    changes = site.tool("plan", "--json").document["nodes"][0]["changes"]
    assert changes[-1]["kind"] == "restart"
    assert told in changes[-1]["why"]

    cut(site, "begun", "switch chat")
    main = f"systemctl show -p MainPID --value {UNIT}"
    after = (
        f"[ \"$(tr '\\0' '\\n' </proc/$({main})/environ | grep -c '^SGLANG_DEPLOYMENT=2$')\" = 1 ]"
    )
    node.run(f"for i in $(seq 300); do {after} && exit; sleep 0.5; done; exit 1")
    wait_for(node, UNIT, ActiveState="active")
    assert "SGLANG_DEPLOYMENT=2" in serving(node)


@pytest.mark.parametrize(
    ("when", "name"),
    [("before", "verify chat"), ("ended", "verify chat"), ("ended", "record chat")],
)
def test_a_run_cut_after_the_start_changes_nothing_more(
    site: Site, node: Node, first: list[str], when: str, name: str
) -> None:
    before = serving(node)
    node.run(f"rm -f {DEPLOYMENTS}/current/record.json")
    cut(site, when, name)
    assert serving(node) == before


def test_the_next_run_ends_whole_as_one_that_nobody_cut(
    site: Site, node: Node, first: list[str]
) -> None:
    before = serving(node)
    assert site.tool("apply").code == 0
    assert site.tool("plan", "--check").code == 0
    assert serving(node) == before
    assert end_state(node, 2) == first


PACKAGES = "$(echo $(readlink -f $environment)/lib/python3*/site-packages)"


@pytest.mark.parametrize(
    ("done", "told", "planned", "undone"),
    [
        (
            f"echo '# mine' >>{DEPLOYMENTS}/2/service.env",
            f"edited: {DEPLOYMENTS}/2/service.env",
            "FILE_EDITED",
            f"sed -i '/^# mine$/d' {DEPLOYMENTS}/2/service.env",
        ),
        (
            f"echo '# mine' >>/etc/systemd/system/{UNIT}; systemctl daemon-reload",
            f"edited: /etc/systemd/system/{UNIT}",
            "FILE_EDITED",
            f"sed -i '/^# mine$/d' /etc/systemd/system/{UNIT}; systemctl daemon-reload",
        ),
        (
            f"cd {PACKAGES}; touch -r . /root/time; mv tabulate-*.dist-info tabulate-9.9.dist-info",
            "+ tabulate-9.9.dist-info",
            "+ tabulate-9.9.dist-info",
            f"cd {PACKAGES}; mv tabulate-*.dist-info tabulate-0.10.0.dist-info; "
            "touch -r /root/time .",
        ),
        (
            "mv $environment /opt/sglang/away",
            "environment gone: ",
            "not on the node",
            "mv /opt/sglang/away $environment",
        ),
    ],
    ids=["service.env", "unit", "package", "environment"],
)
def test_what_somebody_changed_is_named(
    site: Site, node: Node, done: str, told: str, planned: str, undone: str
) -> None:
    before = serving(node)
    environment = before.split("=")[-1].strip()
    node.run(f"environment={environment}; {done}")
    status, plan = site.tool("status", "--json"), site.tool("plan", "--check")
    node.run(f"environment={environment}; {undone}")
    drift = status.document["nodes"][0]["services"][0]["drift"]
    assert any(told in one for one in drift), drift
    assert (plan.code != 0, planned in plan.out) == (True, True)
    assert serving(node) == before
    assert site.tool("plan", "--check").code == 0
