"""Whoever connects must be root or become it; nothing is begun otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .harness.machine import Node
from .harness.registry import Registry
from .site import Site, service, show

USER = "maria"
PASSWORD = "correct 'horse\" $battery"


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host that has the images, and a user who may use sudo, for now without a password."""
    node = node_factory("user", images=True)
    node.run(
        f"useradd -m -s /bin/sh {USER} && cp -r /root/.ssh /home/{USER}/ "
        f"&& chown -R {USER}: /home/{USER}/.ssh "
        f"&& echo '{USER} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/{USER} "
        f"&& echo '{USER} ALL=(ALL) ALL' > /root/asked"
    )
    node.run("chpasswd", text=f"{USER}:{PASSWORD}\n")
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(node: Node, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An inventory that connects as that user."""
    data = {"services": [service()], "registry": {"mirrors": {"docker.io": registry.url}}}
    return Site(tmp_path_factory.mktemp("site"), [node], data, keys={"ssh_user": USER})


def refused(site: Site, node: Node, words: str) -> None:
    """Let apply refuse for want of root alone, in these words, and change nothing."""
    look = "find /etc /var/lib /var/cache /opt /run -path '*sglang*' -not -path '*sudoers*'"
    before = node.run(look).stdout
    ran = site.tool("apply", "--json")
    assert ran.code == 3
    (told,) = ran.document["nodes"]
    codes = {one["code"]: one for one in told["refusals"]}
    assert words in codes["NEED_ROOT"]["advice"]
    assert node.run(look).stdout == before


def test_without_sudo_it_is_refused_with_what_to_add(site: Site, node: Node) -> None:
    refused(site, node, "--sudo")


def test_where_sudo_wants_a_password_it_is_refused_with_what_to_add(site: Site, node: Node) -> None:
    node.run(f"mv /etc/sudoers.d/{USER} /root/allowed")
    refused(site, node, "--ask-sudo-password")
    refused(site, node, "NOPASSWD")
    node.run(f"mv /root/allowed /etc/sudoers.d/{USER}")


def test_with_sudo_and_its_password_it_serves(site: Site, node: Node) -> None:
    node.run(f"mv /etc/sudoers.d/{USER} /root/allowed && cp /root/asked /etc/sudoers.d/{USER}")
    site.keys["sudo_password"] = {"env": "GPU_SUDO"}
    site.environment["GPU_SUDO"] = PASSWORD
    ran = site.tool("apply", "--sudo", "-vvv")
    assert ran.code == 0
    assert "ready, and it generates" in ran.out
    assert "battery" not in ran.out + ran.err
    assert show(node, "sglang@chat.service", "ActiveState") == {"ActiveState": "active"}
    written = "/var/lib/sglang/deployments /etc/systemd/system/sglang@*"
    assert set(node.run(f"find {written} -printf '%u\\n'").stdout.split()) == {"root"}
    node.run(f"mv /root/allowed /etc/sudoers.d/{USER}")


def test_with_sudo_that_asks_for_none_it_is_the_same(site: Site, node: Node) -> None:
    ran = site.tool("apply", "--sudo")
    assert ran.code == 0
    assert "unchanged, ready" in ran.out
    journal = node.run("journalctl --no-pager; cat /var/log/auth.log 2>/dev/null; true").stdout
    assert "sudo" in journal
    assert "battery" not in journal
