"""An upgrade and a rollback whose controller is killed, whose node loses its power, whose disks are
full: the old deployment or the new one serves, whole, and the same command ends the same.

One node with the real SGLang on its CPU device. The programs themselves are killed at each of
their commands in tests/unit/test_killed_programs.py, and every step that takes a start of the
server is cut in tests/long/test_every_cut.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .cutting import CUT_PORT, controller_killed, cut_at, cut_connections
from .harness.machine import Node
from .harness.registry import Registry
from .site import Site, service, show, wait_for

UNIT = "sglang@chat.service"
STATE = "/var/lib/sglang"
PLACE = f"{STATE}/deployments/chat"
UPGRADE = ("--to", "0.5.23", "--soak", "2s", "--yes")


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host that has the images, with an sshd that cuts."""
    node = node_factory("cutup", images=True)
    cut_connections(node)
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(node: Node, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """One service of 0.5.22, which runs; the lock has 0.5.23 too."""
    data = {"services": [service()], "registry": {"mirrors": {"docker.io": registry.url}}}
    site = Site(tmp_path_factory.mktemp("site"), [node], data, port=CUT_PORT)
    assert site.tool("apply").code == 0
    assert site.tool("lock", "--to", "0.5.23").code == 0
    return site


def links(node: Node) -> list[str]:
    return node.run(f"cd {PLACE} && readlink current previous || :").stdout.split()


def record(node: Node, number: int) -> Any:
    return json.loads(node.read(f"{PLACE}/{number}/record.json"))


def serving(node: Node) -> str:
    """Return the run of the service, which answers, and the deployment that its container is of."""
    path = "http://127.0.0.1:30000/ready"
    assert node.run(f"curl -s -o /dev/null -w '%{{http_code}}' {path}").stdout == "200"
    label = "docker inspect -f '{{index .Config.Labels \"sglang.deployment\"}}' sglang-chat"
    return f"{show(node, UNIT, 'InvocationID')['InvocationID']} {node.run(label).stdout.strip()}"


def settled(node: Node, number: int) -> None:
    """Wait until the service serves from a deployment."""
    label = "docker inspect -f '{{index .Config.Labels \"sglang.deployment\"}}' sglang-chat"
    node.run(
        f'for i in $(seq 600); do [ "$({label})" = {number} ] && exit; sleep 0.5; done; exit 1'
    )
    wait_for(node, UNIT, ActiveState="active")


# --- nothing is switched


@pytest.mark.parametrize(
    "name", ["sglang-survey", "check the weights", f"write {PLACE}", "try chat"]
)
def test_a_controller_killed_before_the_switch_leaves_what_serves(
    site: Site, node: Node, name: str
) -> None:
    before = serving(node)
    controller_killed(site, name, "upgrade", *UPGRADE)
    assert serving(node) == before
    assert links(node) == ["1"]


@pytest.fixture
def small(node: Node) -> Iterator[Callable[[str], None]]:
    """Lay a small file system over a directory of the node, with what is in it; gone at the end."""
    laid = []

    def lay(path: str) -> None:
        node.run(
            f"rm -rf /root/kept && cp -a {path} /root/kept && "
            f"mount -t tmpfs -o size=24m,mode=0755 tmpfs {path} && cp -a /root/kept/. {path}/"
        )
        laid.append(path)

    yield lay
    for path in laid:
        node.run(f"umount {path}")


@pytest.mark.parametrize(
    ("path", "name", "told"),
    [
        (STATE, f"write {PLACE}", f"nothing was changed: 0 KiB free on {STATE} for {PLACE}/2"),
        (STATE, "try chat", f"0 KiB free on {STATE} for {PLACE}/2"),
        ("/var/cache/sglang", "try chat", "0 KiB free on /var/cache/sglang for /var/cache/sglang"),
    ],
)
def test_a_disk_that_is_full_by_then_refuses_the_upgrade(
    site: Site, node: Node, small: Callable[[str], None], path: str, name: str, told: str
) -> None:
    before = serving(node)
    small(path)
    cut_at(node, f"full-{path}", name)
    ran = site.tool("upgrade", *UPGRADE, "--json")
    assert ran.code == 1
    (one,) = ran.document["nodes"]
    (refusal,) = one["refusals"]
    assert (refusal["code"], one["node"]) == ("DISK_FULL", node.name)
    assert told in refusal["seen"]
    assert "16 MiB" in refusal["needed"]
    assert f"make room: df -h {path}; sudo du -xsh {path}/*" in refusal["advice"]
    assert one["then"] == "nothing was switched: what served before serves on"
    assert serving(node) == before
    assert links(node) == ["1"]
    assert node.run(f"ls -d {PLACE}/*.new 2>/dev/null; :").stdout == ""


# --- the switch


def test_a_power_cut_in_the_switch_starts_the_new_one_and_the_same_command_proves_it(
    site: Site, node: Node
) -> None:
    cut_at(node, "killed-at-2", "switch chat")
    assert site.tool("upgrade", *UPGRADE).code == 1
    assert links(node) == ["2", "1"]
    assert serving(node).endswith(" 1")
    node.cut_power()
    node.boot()
    cut_at(node)
    settled(node, 2)
    started = serving(node)
    ran = site.tool("upgrade", *UPGRADE, "--json")
    assert ran.code == 0
    assert ran.document["nodes"][0]["upgrade"] == "done"
    assert serving(node) == started
    assert record(node, 2)["upgrade"] == "proved"
    assert links(node) == ["2", "1"]
    ran = site.tool("upgrade", *UPGRADE, "--json")
    assert ran.document["nodes"][0]["upgrade"] == "unchanged"


def test_a_rollback_whose_controller_is_killed_is_gone_on_with_and_not_turned_round(
    site: Site, node: Node
) -> None:
    before = serving(node)
    controller_killed(site, "sglang-survey", "rollback")
    assert serving(node) == before
    controller_killed(site, "go back with chat", "rollback")
    settled(node, 1)
    assert links(node) == ["1", "2"]
    back = serving(node)
    controller_killed(site, "verify chat", "rollback")
    assert serving(node) == back
    ran = site.tool("rollback", "--json")
    assert ran.code == 0
    assert (links(node), serving(node)) == (["1", "2"], back)
    assert record(node, 1)["rolled_back_from"] == 2
    assert node.run(f"ls {PLACE}/1/back 2>/dev/null; :").stdout == ""
