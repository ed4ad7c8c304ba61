"""One real server behind its door under load: restart, upgrade, rollback, each with its own ledger.

Not among the default tests: `scripts/test tests/long/test_one_server.py -s`, as root; about five
minutes on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.node.fleet import FleetSite, fleet_site, under_load
from tests.node.harness.machine import Node
from tests.node.harness.mirror import Mirror
from tests.node.harness.registry import Registry

pytestmark = pytest.mark.timeout(1800)

PLACE = "/var/lib/sglang/deployments/chat"


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host with Docker and both images in its store."""
    node = node_factory("alone", images=True)
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(
    node: Node, registry: Registry, mirror: Mirror, tmp_path_factory: pytest.TempPathFactory
) -> FleetSite:
    """It serves 0.5.22 behind its own door."""
    site = fleet_site(tmp_path_factory.mktemp("site"), [node], registry, mirror)
    assert site.tool("apply", timeout=1500).code == 0
    assert site.tool("lock", "--to", "0.5.23").code == 0
    return site


@pytest.mark.parametrize(
    ("words", "links"),
    [
        (("restart",), ["1"]),
        (("upgrade", "--to", "0.5.23", "--soak", "10s", "--yes"), ["2", "1"]),
        (("rollback",), ["1", "2"]),
    ],
)
def test_nothing_is_lost_while_the_only_server_is_away(
    site: FleetSite,
    node: Node,
    words: tuple[str, ...],
    links: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = under_load(node, lambda: site.tool(*words, timeout=1500))
    with capsys.disabled():
        print(f"\n{found.line(words[0])}")
    assert found.ran.code == 0
    assert node.run(f"cd {PLACE} && readlink current previous || :").stdout.split() == links
    assert found.not_answered == []
    assert found.ends["answered"] >= 6
    # Some waited at the door meanwhile.
    assert found.ends["longest_wait_seconds"] > 5
