"""A host that reaches no registry gets its image from a file, and it is the same image."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest

from .harness.machine import Node
from .harness.registry import Registry
from .site import Site, service

UNIT = "sglang@chat.service"
TAG = "lmsysorg/sglang:v0.5.22"


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host with an empty store, to which no registry answers."""
    node = node_factory("apart")
    node.docker_settings(registry_mirrors=[])
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(node: Node, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An inventory with one service; the controller does reach a registry, and has a lock."""
    data = {"services": [service()], "registry": {"mirrors": {"docker.io": registry.url}}}
    site = Site(tmp_path_factory.mktemp("site"), [node], data)
    assert site.tool("lock").code == 0
    return site


def planned(site: Site) -> list[str]:
    """Return the kinds of change that a plan has."""
    (node,) = site.tool("plan", "--json").document["nodes"]
    assert node["refusals"] == []
    return [change["kind"] for change in node["changes"]]


def load(node: Node, node_factory: Callable[..., Node], digest: str) -> None:
    """Load the image on a node from what ``docker save`` writes on another."""
    other = node_factory("connected", images=True, gpus=None, model=False)
    try:
        other.run(f"docker tag lmsysorg/sglang@{digest} {TAG}")
        with subprocess.Popen(
            [*other.ssh(), f"docker save {TAG}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        ) as saved:
            subprocess.run([*node.ssh(), "docker load"], stdin=saved.stdout, check=True)
        assert saved.returncode == 0
    finally:
        other.discard()


def test_an_image_that_was_loaded_is_not_fetched(
    site: Site, node: Node, registry: Registry, node_factory: Callable[..., Node]
) -> None:
    assert "image" in planned(site)
    load(node, node_factory, registry.digest("lmsysorg/sglang", "v0.5.22"))
    # No registry's digest came with it.
    (image,) = node.run("docker images -q --no-trunc").stdout.split()
    assert node.run(f"docker inspect -f '{{{{json .RepoDigests}}}}' {image}").stdout == "[]\n"
    assert "image" not in planned(site)


def test_it_serves_by_the_digest_of_its_configuration(site: Site, node: Node) -> None:
    ran = site.tool("apply")
    assert ran.code == 0
    assert "ready, and it generates" in ran.out
    (image,) = node.run("docker images -q --no-trunc").stdout.split()
    inspected = json.loads(node.run("docker inspect sglang-chat").stdout)[0]
    assert inspected["Config"]["Image"] == image
    assert inspected["Image"] == image
    ran = site.tool("apply")
    assert ran.code == 0
    assert "unchanged, ready" in ran.out
