"""A bundle made on one node installs on another whose network is cut."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from locks.lockfile import read_lock
from releases.wheels import read_lock as read_wheels
from releases.wheels import write_lock as write_wheels
from tests.played_hub import COMMIT, Hub, serving

from .harness import sglang_cpu
from .harness.lab import Lab
from .harness.machine import Node
from .harness.registry import Registry
from .site import Site, service, show

REPO = "tiny/qwen2"
HOME = "/var/lib/sglang/hub"
UNIT = "sglang@chat.service"
TINY = "tiny/http:1"
PACKAGES = ("idna", "sglang", "sniffio")

CUT = (
    "iptables -I OUTPUT -o host0 -p tcp ! --sport 22 -j DROP;"
    "iptables -I OUTPUT -o host0 -p udp -j DROP;"
    "iptables -I FORWARD -o host0 -j DROP"
)
"""Ends every way out of a node but the answers of its sshd."""


@pytest.fixture(scope="module")
def hub(node_cache: Path) -> Hub:
    """A hub with the tiny model."""
    folder = sglang_cpu.model(node_cache)
    return Hub(REPO, {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()})


@pytest.fixture(scope="module")
def endpoint(hub: Hub, bridge: str) -> Iterator[str]:
    """The hub's address, from the nodes and from here."""
    with serving(hub, bridge) as address:
        yield address


@pytest.fixture(scope="module")
def maker(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host that does reach registry and hub."""
    node = node_factory("maker", images=True)
    yield node
    node.discard()


@pytest.fixture(scope="module")
def apart(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host from which nothing goes out: it has the image of SGLang, and neither weights nor
    the small image."""
    node = node_factory("apart", images=True)
    node.run("docker rmi -f $(docker images -q tiny/http)")
    node.run(CUT)
    yield node
    node.discard()


def data(registry: Registry, endpoint: str) -> dict[str, Any]:
    """Return an inventory's data: one service of a hub model."""
    return {
        "services": [service(model=REPO, served_name="tiny")],
        "registry": {"mirrors": {"docker.io": registry.url}, "insecure": [registry.host]},
        "hub": {"endpoint": endpoint},
    }


def made(site: Site, node: Node, *words: str) -> tuple[Path, str]:
    """Make a bundle of a node; return it and the hash of its manifest."""
    out = site.folder / "site.bundle"
    look = "ls /etc/systemd/system /var/lib/sglang/deployments 2>/dev/null; docker ps -aq"
    before = node.run(look).stdout
    ran = site.tool("bundle", "--out", str(out), "--json", *words)
    assert ran.code == 0
    assert node.run(look).stdout == before
    assert "bundles" not in node.run("ls /var/lib/sglang 2>/dev/null; true").stdout.split()
    sha256 = ran.document["bundle"]["manifest_sha256"]
    assert out.with_name("site.bundle.sha256").read_text().split() == [sha256, "manifest.json"]
    assert sorted(p.name for p in site.folder.iterdir() if "bundle" in p.name) == [
        "site.bundle",
        "site.bundle.sha256",
    ]
    return out, sha256


@pytest.fixture(scope="module")
def with_weights(
    maker: Node, registry: Registry, endpoint: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A bundle with the weights, for hosts that have the image."""
    site = Site(tmp_path_factory.mktemp("maker"), [maker], data(registry, endpoint))
    return made(site, maker, "--weights", "--no-images")


@pytest.fixture(scope="module")
def site(
    apart: Node, registry: Registry, endpoint: str, tmp_path_factory: pytest.TempPathFactory
) -> Site:
    """The inventory of that host, without a lock."""
    return Site(tmp_path_factory.mktemp("site"), [apart], data(registry, endpoint))


def test_a_damaged_bundle_is_refused_before_anything_changes(
    site: Site, apart: Node, with_weights: tuple[Path, str], tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.bundle"
    shutil.copyfile(with_weights[0], damaged)
    with damaged.open("r+b") as file:
        file.seek(-100_000, 2)
        file.write(b"x")
    ran = site.tool("apply", "--bundle", str(damaged))
    assert ran.code == 3
    assert "BUNDLE_DAMAGED" in ran.out
    assert (
        apart.run("find /var/lib/sglang /run/sglang/bundles -type f 2>/dev/null; true").stdout == ""
    )


def test_an_image_from_a_bundle_is_the_locked_one_by_its_digest(
    maker: Node,
    apart: Node,
    registry: Registry,
    endpoint: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    # A small image serves nothing: what an apply does after it has brought it fails.
    small = data(registry, endpoint)
    small["services"] = [service(image=TINY)]
    making = Site(tmp_path_factory.mktemp("small-maker"), [maker], small)
    path, _ = made(making, maker)
    using = Site(tmp_path_factory.mktemp("small"), [apart], small)
    (planned,) = using.tool("plan", "--bundle", str(path), "--json").document["nodes"]
    assert planned["refusals"] == []
    (change,) = [one for one in planned["changes"] if one["kind"] == "image"]
    assert change["why"].endswith(": loaded from the bundle")
    ran = using.tool("apply", "--bundle", str(path))
    assert ran.code == 1
    assert "the weights of chat could not be checked" in ran.out
    locked = read_lock(using.folder / "sglang.lock")
    assert locked is not None
    image = locked.image(TINY)
    assert image is not None
    assert image.platforms["linux/amd64"].config_digest == change["what"]
    inspected = apart.run(f"docker inspect -f '{{{{.Id}}}}' {change['what']}").stdout.strip()
    assert inspected == change["what"]
    (planned,) = using.tool("plan", "--json").document["nodes"]
    assert "image" not in {one["kind"] for one in planned["changes"]}
    assert apart.run("ls /var/lib/sglang 2>/dev/null; true").stdout == ""


def test_an_environment_is_built_from_a_bundle_alone(
    maker: Node, apart: Node, lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Too small to serve anything: what an apply does after it has built it fails.
    folders = [tmp_path_factory.mktemp(name) for name in ("wheel-maker", "wheel")]
    lock = read_wheels(lab.mirror.locks["0.5.22"].read_text())
    small = tuple(one for one in lock.packages if one.name in PACKAGES)
    text = write_wheels(lock.model_copy(update={"packages": small}))
    (folders[0] / "small.txt").write_text(text)
    wanted: dict[str, Any] = {
        "services": [service(name="small", port=30001)],
        "runtime": "wheel",
        "wheel_lock": str(folders[0] / "small.txt"),
        "mirrors": lab.mirror.keys,
        "door": {"port": 8000, "lock": str(lab.mirror.locks["door"])},
    }
    making, using = Site(folders[0], [maker], wanted), Site(folders[1], [apart], wanted)
    out = making.folder / "site.bundle"
    ran = making.tool("bundle", "--out", str(out), "--json")
    assert ran.code == 0
    key, of_door = ran.document["bundle"]["environments"]
    assert "bundles" not in maker.run("ls /var/lib/sglang 2>/dev/null; true").stdout.split()
    (planned,) = using.tool("plan", "--bundle", str(out), "--json").document["nodes"]
    assert planned["refusals"] == []
    why = [one["why"] for one in planned["changes"] if one["what"].startswith(key)]
    assert why == ["not on the node: built from the bundle"]
    ran = using.tool("apply", "--bundle", str(out))
    assert ran.code in (1, 3)
    assert "the environment of small could not be made" not in ran.out
    place = f"/opt/sglang/environments/{key}"
    imports = "import idna, sys; print(idna.__version__, sys.prefix, sys.base_prefix)"
    version, prefix, base = apart.run(f"{place}/bin/python3 -c '{imports}'").stdout.split()
    assert version == next(one.version for one in small if one.name == "idna")
    assert prefix == place
    assert base.startswith("/opt/sglang/python/cpython-3.11.")
    # The door's packages came with it too.
    routes = f"/opt/sglang/environments/{of_door}/bin/python3 -c 'import aiohttp, sglang_router'"
    assert apart.run(routes).stdout == ""
    (planned,) = using.tool("plan", "--json").document["nodes"]
    assert "environment" not in {one["kind"] for one in planned["changes"]}
    # What the failed apply left of the bundle is named and taken by the next, or by remove.
    apart.run("rm -rf /var/lib/sglang /etc/systemd/system/sglang-door*; systemctl daemon-reload")


def test_a_node_whose_network_is_cut_serves_from_the_bundle(
    site: Site, apart: Node, with_weights: tuple[Path, str], hub: Hub
) -> None:
    path, sha256 = with_weights
    hub.asked.clear()
    assert apart.run(f"curl -sm 2 {site.data['hub']['endpoint']}; echo $?").stdout == "28\n"
    (planned,) = site.tool("plan", "--bundle", str(path), "--json").document["nodes"]
    assert planned["refusals"] == []
    assert {"weights", "deployment", "start"} <= {one["kind"] for one in planned["changes"]}
    ran = site.tool("apply", "--bundle", str(path), "--bundle-sha256", sha256)
    assert ran.code == 0
    assert "ready, and it generates" in ran.out
    assert hub.asked == []
    assert COMMIT in apart.run(f"ls {HOME}/sglang/models--tiny--qwen2").stdout
    assert apart.run("ls /var/lib/sglang").stdout.split() == ["deployments", "hub"]


def test_a_second_apply_changes_nothing_and_sends_nothing(
    site: Site, apart: Node, with_weights: tuple[Path, str]
) -> None:
    before = show(apart, UNIT, "InvocationID")
    ran = site.tool("apply", "--bundle", str(with_weights[0]))
    assert ran.code == 0
    assert "unchanged, ready" in ran.out
    # The lock came with the bundle.
    assert "unchanged, ready" in site.tool("plan").out
    assert show(apart, UNIT, "InvocationID") == before
