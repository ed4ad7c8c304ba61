"""A node whose Docker knows no mirror pulls an image from the inventory's, by its digest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .harness.images import TINY
from .harness.machine import Node
from .harness.registry import Registry
from .site import Site, service


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host with an empty store, to which Docker Hub does not answer."""
    node = node_factory("mirrored", model=True)
    node.docker_settings(registry_mirrors=[])
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(node: Node, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An inventory with a small image in SGLang's place: it can be fetched, and cannot serve."""
    data = {
        "services": [service(image=f"{TINY}:1")],
        "registry": {"mirrors": {"docker.io": registry.url}},
    }
    return Site(tmp_path_factory.mktemp("site"), [node], data)


def planned(site: Site) -> Any:
    (node,) = site.tool("plan", "--json").document["nodes"]
    assert node["refusals"] == []
    return node


def test_the_image_is_fetched_from_the_mirror_by_the_digest_that_the_lock_has(
    site: Site, node: Node, registry: Registry
) -> None:
    assert site.tool("lock").code == 0
    name = f"{registry.host}/{TINY}@{registry.digest(TINY, '1')}"
    assert [c["what"] for c in planned(site)["changes"] if c["kind"] == "image"] == [name]
    ran = site.tool("apply")
    assert ran.code != 0, "it holds no Python: the canary stops before anything is switched"
    assert node.run(f"docker image inspect {name}").returncode == 0
    assert node.run("docker images -q").stdout.count("\n") == 1
    after = planned(site)
    assert "image" not in [change["kind"] for change in after["changes"]]
    assert after["services"][0]["image"] == name


def test_a_mirror_that_docker_takes_no_image_from_is_told_before(
    site: Site, node: Node, registry: Registry
) -> None:
    node.run(f"docker rmi {registry.host}/{TINY}@{registry.digest(TINY, '1')}")
    assert "MIRROR_WITHOUT_TLS" not in str(planned(site)["cautions"])
    node.docker_settings(insecure_registries=[])
    assert f'{{"insecure-registries": ["{registry.host}"]}}' in str(planned(site)["cautions"])
