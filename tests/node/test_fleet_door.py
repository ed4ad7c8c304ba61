"""Three nodes, a real server on each, one door: an upgrade of all under load, and one that fails.

The door, on the last node, is told over SSH when a server of another node leaves its rotation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .fleet import FleetSite, Loaded, fleet_nodes, fleet_site, under_load
from .harness.machine import Node
from .harness.mirror import Mirror
from .harness.registry import Registry
from .site import show

# The first of them boots three nodes and upgrades them one after another.
pytestmark = pytest.mark.timeout(1800)

UNIT = "sglang@chat.service"
PLACE = "/var/lib/sglang/deployments/chat"


@pytest.fixture(scope="module")
def nodes(node_factory: Callable[..., Node]) -> Iterator[list[Node]]:
    """Three hosts with Docker and both images in their stores."""
    yield from fleet_nodes(node_factory)


@pytest.fixture(scope="module")
def site(
    nodes: list[Node], registry: Registry, mirror: Mirror, tmp_path_factory: pytest.TempPathFactory
) -> FleetSite:
    """All three serve 0.5.22 behind the door of the last."""
    site = fleet_site(tmp_path_factory.mktemp("site"), nodes, registry, mirror)
    ran = site.tool("apply", timeout=1500)
    assert ran.code == 0
    assert site.tool("lock", "--to", "0.5.23").code == 0
    return site


def runs(nodes: list[Node]) -> list[str]:
    return [show(node, UNIT, "InvocationID")["InvocationID"] for node in nodes]


def links(node: Node) -> list[str]:
    return node.run(f"cd {PLACE} && readlink current previous || :").stdout.split()


def test_three_nodes_and_their_door_are_set_up_in_one_run(
    site: FleetSite, nodes: list[Node]
) -> None:
    # The door waits for its own node's server, and finds the others when they answer.
    there = "[ $(grep -c '^server [^ ]* in ' /run/sglang-door/state) = 3 ]"
    nodes[-1].run(f"for i in $(seq 120); do {there} && exit; sleep 0.5; done; exit 1")


@pytest.fixture(scope="module")
def upgraded(site: FleetSite, nodes: list[Node]) -> Loaded:
    """The rolling upgrade, one node at a time."""
    words = ("--to", "0.5.23", "--soak", "3s", "--batch", "1", "--yes")
    return under_load(nodes[-1], lambda: site.tool("upgrade", *words, timeout=1500))


def test_a_rolling_upgrade_loses_nothing_and_two_always_serve(
    upgraded: Loaded, nodes: list[Node], capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\n{upgraded.line('rolling upgrade of three nodes')}")
    assert upgraded.ran.code == 0
    assert [links(node) for node in nodes] == [["2", "1"]] * 3
    assert len(upgraded.ledger) >= 20
    assert upgraded.not_answered == []
    assert upgraded.rotation.least == 2


def test_each_leaves_the_door_before_it_stops_and_is_back_after_its_soak(
    upgraded: Loaded, nodes: list[Node]
) -> None:
    err = upgraded.ran.err
    for node in nodes:
        steps = [
            f"{node.name}  Take chat out of the door on {nodes[-1].name}",
            f"{node.name}  Restart chat",
            f"{node.name}  Watch chat for 3 s",
            f"{node.name}  Let chat back into the door on {nodes[-1].name}",
        ]
        places = [err.index(step) for step in steps]
        assert places == sorted(places)
    assert nodes[-1].run("ls /run/sglang/door").stdout == ""


def test_where_the_first_fails_it_goes_back_and_the_others_are_not_touched(
    upgraded: Loaded,
    site: FleetSite,
    nodes: list[Node],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (chat,) = site.data["services"]
    chat["release"], chat["arguments"] = "0.5.23", {**chat["arguments"], "log-level": "nonsense"}
    before = runs(nodes)
    words = ("--to", "0.5.22", "--soak", "3s", "--yes", "--json")
    failed = under_load(nodes[-1], lambda: site.tool("upgrade", *words, timeout=1500))
    with capsys.disabled():
        print(f"\n{failed.line('an upgrade that fails on the first of three')}")
    assert failed.ran.code == 1
    ends = [one["upgrade"] for one in failed.ran.document["nodes"]]
    assert ends == ["failed", "not begun", "not begun"]
    (told,) = [one for one in failed.ran.err.splitlines() if "the upgrade to SGLang" in one]
    assert "chat did not start: " in told
    assert "went back to deployment 2, SGLang 0.5.23" in told
    assert runs(nodes)[1:] == before[1:]
    assert links(nodes[0]) == ["2", "3"]
    assert failed.not_answered == []
    assert failed.rotation.least == 2
    assert failed.rotation.seen[-1] == 3
