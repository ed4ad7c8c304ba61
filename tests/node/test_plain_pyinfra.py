"""The deploys are whole under plain ``pyinfra INVENTORY deploys/X.py``, without the tool."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from .harness.machine import Node
from .harness.registry import Registry
from .site import Ran, Site, service, show

UNIT = "sglang@chat.service"


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host that has the images."""
    node = node_factory("plain", images=True)
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(node: Node, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An inventory with one service and no lock."""
    data = {"services": [service()], "registry": {"mirrors": {"docker.io": registry.url}}}
    return Site(tmp_path_factory.mktemp("site"), [node], data)


def totals(ran: Ran) -> list[str]:
    """Return pyinfra's last line: operations, then success, error and no change."""
    (line,) = re.findall(r"Grand total +(.*)", ran.out + ran.err)
    return str(line).split()


def test_a_survey_says_what_the_node_is(site: Site) -> None:
    ran = site.pyinfra("survey", "-y")
    assert ran.code == 0
    assert "1 × NVIDIA L4, driver 580.105.08" in ran.out + ran.err


def test_without_a_lock_it_refuses_and_names_the_command(site: Site, node: Node) -> None:
    ran = site.pyinfra("bootstrap", "-y")
    assert ran.code != 0
    assert "LOCK_UNRESOLVED" in ran.out + ran.err
    assert "sglang-node lock" in ran.out + ran.err
    assert node.run("test -e /var/lib/sglang", check=False).returncode == 1
    assert not (site.folder / "sglang.lock").exists()


def test_a_bootstrap_ends_with_a_server_that_generates(site: Site, node: Node) -> None:
    assert site.tool("lock").code == 0
    ran = site.pyinfra("bootstrap", "-y")
    assert ran.code == 0
    # The image is there already; the rest had to be done.
    assert totals(ran) == ["7", "6", "-", "1"]
    assert show(node, UNIT, "ActiveState") == {"ActiveState": "active"}
    assert '"ready, and it generates"' in node.read(
        "/var/lib/sglang/deployments/chat/1/record.json"
    )


def test_a_second_bootstrap_changes_nothing(site: Site, node: Node) -> None:
    before = show(node, UNIT, "MainPID", "InvocationID")
    ran = site.pyinfra("bootstrap", "-y")
    assert ran.code == 0
    assert totals(ran) == ["5", "-", "-", "5"]
    assert show(node, UNIT, "MainPID", "InvocationID") == before


def test_a_verify_generates_and_fails_where_nothing_answers(site: Site, node: Node) -> None:
    ran = site.pyinfra("verify", "-y")
    assert ran.code == 0
    assert totals(ran) == ["1", "1", "-", "-"]
    node.run(f"systemctl stop {UNIT}")
    ran = site.pyinfra("verify", "-y")
    assert ran.code == 1
    assert "No hosts remaining" in ran.out + ran.err


def test_a_remove_leaves_no_service(site: Site, node: Node) -> None:
    assert site.pyinfra("remove", "-y").code == 0
    left = node.run("ls -d /etc/systemd/system/sglang* /var/lib/sglang/deployments", check=False)
    assert left.stdout == ""
    assert node.run("docker ps -aq").stdout == ""
