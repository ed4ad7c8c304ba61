"""A service is closed unless it is opened, and nothing is stopped for an image that cannot serve.

The container, its flags and its failures are real; played are the L4 and, in one test, the
answers of its driver's library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from .harness.gpus import play_cuda, play_gpus
from .harness.machine import Node
from .harness.registry import Registry
from .site import Site, has_the_flags_of_the_unit, service, show, stream

UNIT = "sglang@chat.service"
CDI = "/etc/cdi/nvidia.yaml"


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A Debian 13 host with an L4 and the images in Docker's store."""
    node = node_factory("closed", images=True)
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(node: Node, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An inventory with one service."""
    return Site(
        tmp_path_factory.mktemp("closed"),
        [node],
        {"services": [service()], "registry": {"mirrors": {"docker.io": registry.url}}},
    )


def inspected(node: Node) -> dict[str, Any]:
    """Return what Docker says of the service's container."""
    found = json.loads(node.run("docker inspect sglang-chat").stdout)[0]
    assert isinstance(found, dict)
    return found


def generates(node: Node) -> bool:
    """Say whether the service answers a generation to its end."""
    return stream(node, 5).finish(60) == (5, True)


def test_a_cache_that_another_user_owns_is_refused_before_anything_starts(
    site: Site, node: Node
) -> None:
    node.run("mkdir -p /var/cache/sglang && chown 1000 /var/cache/sglang")
    ran = site.tool("apply")
    assert ran.code == 3
    assert "CACHE_NOT_OURS" in ran.out
    assert "/var/cache/sglang belongs to user 1000" in ran.out
    assert show(node, UNIT, "ActiveState") == {"ActiveState": "inactive"}
    assert node.run("readlink /var/lib/sglang/deployments/chat/current", check=False).stdout == ""
    # The command that the refusal names.
    assert "chown -R root:root /var/cache/sglang" in ran.out
    node.run("sh -c 'chown -R root:root /var/cache/sglang && chmod -R go-w /var/cache/sglang'")


def test_the_service_starts_with_no_right_that_it_does_not_need(site: Site, node: Node) -> None:
    assert site.tool("apply").code == 0
    has_the_flags_of_the_unit(inspected(node)["HostConfig"])
    status = node.run("docker exec sglang-chat cat /proc/self/status").stdout
    assert "CapEff:\t0000000000000000" in status
    assert "CapBnd:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert node.run("docker exec sglang-chat touch /opt/sglang/x", check=False).returncode != 0
    # What is compiled into /tmp can be loaded from there.
    assert (
        " /tmp tmpfs rw,nosuid,nodev" in node.run("docker exec sglang-chat cat /proc/mounts").stdout
    )


def test_it_generates_and_leaves_nothing_in_its_image(node: Node) -> None:
    assert generates(node)
    mounted = [PurePosixPath(one["Destination"]) for one in inspected(node)["Mounts"]]
    mounted += [PurePosixPath("/tmp"), PurePosixPath("/usr/sbin/docker-init")]
    places = {parent for path in mounted for parent in (path, *path.parents)}
    for line in node.run("docker diff sglang-chat").stdout.splitlines():
        assert PurePosixPath(line.split()[1]) in places, line


def test_only_loopback_listens(node: Node) -> None:
    listeners = node.run("ss -Hltn | awk '{print $4}'").stdout.split()
    assert [one for one in listeners if one.endswith(":30000")] == ["127.0.0.1:30000"]
    assert [one for one in listeners if not one.startswith(("127.", "[::1]"))] == [
        "0.0.0.0:22",
        "[::]:22",
    ]


def test_the_caches_are_root_s_alone(node: Node) -> None:
    listing = node.run("stat -c '%U:%G %a %n' /var/cache/sglang /var/cache/sglang/*").stdout
    top, build = listing.splitlines()
    assert top == "root:root 755 /var/cache/sglang"
    assert build.startswith("root:root 700 /var/cache/sglang/")


def test_the_record_holds_what_the_image_was_found_to_hold(node: Node) -> None:
    record = json.loads(node.read("/var/lib/sglang/deployments/chat/1/record.json"))
    canary = record["canary"]
    assert canary["mode"] == "cpu"
    assert canary["versions"]["sglang"] == "0.5.22"
    assert canary["versions"]["torch"].startswith("2.")
    assert canary["imports"] == {}
    assert canary["unreadable"] == canary["unwritable"] == []
    assert node.run("docker ps -a --format '{{.Names}}'").stdout.split() == ["sglang-chat"]


def refused_while_it_serves(site: Site, node: Node) -> str:
    """Apply, which is refused; the old service never noticed. Return what was said."""
    before = show(node, UNIT, "MainPID", "InvocationID", "NRestarts")
    ran = site.tool("apply")
    assert ran.code == 3
    assert show(node, UNIT, "MainPID", "InvocationID", "NRestarts") == before
    assert node.run("readlink /var/lib/sglang/deployments/chat/current").stdout.strip() == "1"
    assert node.run("docker ps -a --format '{{.Names}}'").stdout.split() == ["sglang-chat"]
    assert generates(node)
    return ran.out


def test_an_803_in_the_new_container_is_found_while_the_old_one_serves(
    site: Site, node: Node
) -> None:
    play_cuda(
        node,
        803,
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "system has unsupported display driver / cuda driver combination",
    )
    arguments = site.data["services"][0]["arguments"]
    del arguments["device"]
    said = refused_while_it_serves(site, node)
    assert "COMPAT_IN_THE_WAY" in said
    assert "CUDA error 803" in said
    assert "sudo reboot" in said
    arguments["device"] = "cpu"
    play_gpus(node, "one_l4_580")


def test_a_stale_cdi_specification_is_found_while_the_old_one_serves(
    site: Site, node: Node
) -> None:
    text = node.read(CDI)
    specification = yaml.safe_load(text)
    specification["containerEdits"] = {"deviceNodes": [{"path": "/dev/nvidia-gone"}]}
    node.put(CDI, yaml.safe_dump(specification))
    site.data["services"][0]["arguments"]["max-running-requests"] = 8
    said = refused_while_it_serves(site, node)
    assert "CDI_STALE" in said
    assert "sudo nvidia-ctk cdi generate" in said
    node.put(CDI, text)


def test_on_the_host_s_network_the_scheduler_s_port_is_pinned_and_named(
    site: Site, node: Node
) -> None:
    site.data["services"][0]["network"] = "host"
    ran = site.tool("apply")
    assert ran.code == 0
    assert "HOST_NETWORK" in ran.out
    assert "all addresses, port 22000" in ran.out
    host = inspected(node)["HostConfig"]
    assert host["NetworkMode"] == "host"
    assert host["PortBindings"] == {}
    lines = node.run("ss -Hltnp | grep sglang").stdout.splitlines()
    open_ones = [
        line.split()[3] for line in lines if "127.0.0.1" not in line and "[::1]" not in line
    ]
    assert open_ones == ["*:22000"]
    assert "127.0.0.1:30000" in "\n".join(lines)
    assert "unchanged, ready" in site.tool("plan").out


def test_the_inventory_of_the_example_opens_nothing() -> None:
    text = Path(__file__).parents[2].joinpath("inventories/example.py").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(text, names)
    (one,) = names["gpu_nodes"][1]["sglang"]["services"]
    assert (one["network"], one["read_only"], one["address"]) == ("bridge", True, "127.0.0.1")
