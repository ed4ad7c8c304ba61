"""Every step of an upgrade and of a rollback cut on a real node, by the controller's end and by a
loss of the node's power: one of both deployments serves afterwards, and the same command run again
ends as one that nobody cut.

    scripts/test tests/long/test_every_cut.py     (about an hour: two or three starts for each step)

The remote commands of an upgrade on a node that has both images, in their order (an upgrade that
fails goes back by the commands of a rollback, after `keep the logs`):

    sglang-survey   asked at the plan, and again when the batch begins
    check the weights, write DEPLOYMENT, try     while the old one serves
    switch          the files of systemd's, the two links, the restart; follows it until it is ready
    verify, record (begun), prove, watch, record (proved)     give the lock back
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.node.cutting import CUT_PORT, controller_killed, cut_at, cut_connections
from tests.node.harness.machine import Node
from tests.node.harness.registry import Registry
from tests.node.site import Site, service, wait_for

UNIT = "sglang@chat.service"
PLACE = "/var/lib/sglang/deployments/chat"
UPGRADE = ("upgrade", "--to", "0.5.23", "--soak", "5s", "--yes")
STEPS = (
    "sglang-survey", "check the weights", f"write {PLACE}", "try chat", "switch chat",
    "verify chat", "record chat", "prove chat", "watch chat",
)  # fmt: skip
BACK = ("sglang-survey", "go back with chat", "verify chat", "record chat")
LABEL = "docker inspect -f '{{index .Config.Labels \"sglang.deployment\"}}' sglang-chat"


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host that has the images, with an sshd that cuts."""
    node = node_factory("everycut", images=True)
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


def links(node: Node) -> list[int]:
    out = node.run(f"cd {PLACE} && readlink current previous || :").stdout
    return [int(one) for one in out.split()]


def record(node: Node) -> Any:
    return json.loads(node.read(f"{PLACE}/current/record.json"))


def serves_whole(node: Node) -> None:
    """Wait until what the link leads to serves, or what served before where nothing was asked of
    systemd; and find no file of a deployment empty."""
    wait_for(node, UNIT, timeout=400, ActiveState="active")
    ask = "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:30000/ready"
    node.run(f'for i in $(seq 60); do [ "$({ask})" = 200 ] && exit; sleep 1; done; exit 1')
    assert int(node.run(LABEL).stdout) in links(node)
    assert node.run(f"find {PLACE}/current/ -type f -empty ! -name container.env").stdout == ""


def ended(site: Site, node: Node, began: list[int]) -> None:
    """Check that an upgrade ended as it should: proved, and the one before kept."""
    current, previous = links(node)
    assert previous == began[0]
    assert int(node.run(LABEL).stdout) == current
    assert (record(node)["release"], record(node)["upgrade"]) == ("0.5.23", "proved")
    assert node.run(f"ls -a {PLACE} | grep -E 'new$|^\\.(current|previous)$' || :").stdout == ""
    again = site.tool(*UPGRADE, "--json")
    assert again.document["nodes"][0]["upgrade"] == "unchanged"


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power"])
@pytest.mark.parametrize("at", range(len(STEPS)), ids=[one.split("/")[0] for one in STEPS])
def test_an_upgrade_and_its_rollback_cut_at_a_step(
    site: Site, node: Node, at: int, power: bool
) -> None:
    began = links(node)
    controller_killed(site, STEPS[at], *UPGRADE, power=power)
    serves_whole(node)
    assert site.tool(*UPGRADE).code == 0
    ended(site, node, began)
    current = links(node)[0]
    controller_killed(site, BACK[at % len(BACK)], "rollback", power=power)
    serves_whole(node)
    # One whose record is written has ended: run again it would be another one.
    if links(node) != [began[0], current] or record(node).get("rolled_back_from") != current:
        assert site.tool("rollback").code == 0
    assert links(node) == [began[0], current]
    assert record(node)["rolled_back_from"] == current
    assert int(node.run(LABEL).stdout) == began[0]
    assert record(node)["release"] == "0.5.22"


@pytest.mark.parametrize("name", ["record chat", "watch chat"])
def test_a_disk_that_is_full_after_the_switch_undoes_it(site: Site, node: Node, name: str) -> None:
    began = links(node)
    state = "/var/lib/sglang"
    # A small file system over it, with what is in it; what runs has the files below it open.
    node.run(
        f"rm -rf /root/kept && cp -a {state} /root/kept && "
        f"mount -t tmpfs -o size=24m,mode=0755 tmpfs {state} && cp -a /root/kept/. {state}/"
    )
    cut_at(node, f"full-{state}", name)
    ran = site.tool(*UPGRADE, "--json")
    assert ran.code == 1
    (one,) = ran.document["nodes"]
    assert f"df -h {PLACE}/" in one["why"]
    serves_whole(node)
    if name == "record chat":
        assert f"went back to deployment {began[0]}, SGLang 0.5.22 and answers" in one["then"]
        assert links(node)[0] == began[0]
    else:
        # It has proved itself: what lacks is its record, and the same command writes that.
        assert one["then"].startswith("what runs stays")
    node.run(f"rm {state}/fill")
    assert site.tool(*UPGRADE).code == 0
    ended(site, node, began)
    assert site.tool("rollback").code == 0
