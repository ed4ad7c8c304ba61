"""What the toolkit writes is read whole by systemd and Docker, the oldest and the newest here.

Debian 12 has systemd 252 and Docker 20.10, which knows no CDI: there the GPUs come by the
nvidia runtime (runc under that name, on these nodes) or by ``--gpus``. Debian 13 has 257.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from plans import paths, quoting
from plans.deployment import unit_file

from .harness.gpus import gpus
from .harness.machine import Node
from .harness.registry import Registry
from .site import Site, has_the_flags_of_the_unit, service, show

UNIT = "sglang@chat.service"
SYSTEMD = {"bookworm": "252", "trixie": "257"}
VERIFY = f"systemd-analyze verify {paths.UNIT} 2>&1; systemd-analyze verify {UNIT} 2>&1"
TOOLKIT = "NVIDIA Container Toolkit CLI version 1.17.8"


@pytest.fixture(scope="module")
def old_node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A Debian 12 host with the images, whose Docker has no way to the GPUs yet."""
    node = node_factory("oldest", tree_name="bookworm", images=True)
    node.put("/usr/bin/nvidia-ctk", f"#!/bin/sh\necho '{TOOLKIT}'\n", 0o755)
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(old_node: Node, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An inventory with one service on that host."""
    mirrors = {"docker.io": registry.url}
    data = {"services": [service()], "registry": {"mirrors": mirrors}}
    return Site(tmp_path_factory.mktemp("site"), [old_node], data)


def drop_in(site: Site) -> str:
    """The drop-in that apply would write, as ``plan --diff`` shows it."""
    assert site.tool("lock").code == 0
    shown = site.tool("plan", "--diff").out.partition(f"+++ {paths.drop_in('chat')}\n")[2]
    lines = []
    for line in map(str.strip, shown.splitlines()[1:]):
        if not line.startswith("+"):
            break
        lines.append(line[1:] + "\n")
    return "".join(lines)


def nothing_is_said_of(node: Node, text: str) -> None:
    """Let systemd read the unit and this drop-in, then one that it must say something of."""
    file = paths.drop_in("chat")
    node.put(paths.UNIT, unit_file().text)
    node.put(file, text)
    assert node.run(VERIFY).stdout == ""
    # It ends with 0 all the same, so what it prints is all there is to go by.
    node.put(file, text + "StopDrainsSec=5\n")
    told = node.run(VERIFY)
    assert "Unknown key" in told.stdout
    assert told.returncode == 0
    node.run(f"rm -r {paths.UNIT} {paths.drop_in_dir('chat')} && systemctl daemon-reload")


def test_the_oldest_systemd_reads_the_unit_and_its_drop_in_without_a_word(
    site: Site, old_node: Node
) -> None:
    assert old_node.run("systemctl --version").stdout.split()[1] == SYSTEMD["bookworm"]
    text = drop_in(site)
    assert "TimeoutStopSec=" in text
    nothing_is_said_of(old_node, text)


def test_the_newest_systemd_reads_them_without_a_word(
    site: Site, node_factory: Callable[..., Node]
) -> None:
    node = node_factory("newest", gpus=None)
    try:
        assert node.run("systemctl --version").stdout.split()[1] == SYSTEMD["trixie"]
        nothing_is_said_of(node, drop_in(site))
    finally:
        node.discard()


def test_without_the_nvidia_runtime_docker_says_why_it_gives_no_gpu(
    site: Site, old_node: Node
) -> None:
    ran = site.tool("apply", "--json")
    assert ran.code == 3
    assert "TOOLKIT_MISSING" in ran.out
    assert "docker run --gpus: Docker's CDI is off" in ran.out
    words = old_node.read("/var/lib/sglang/deployments/chat/1/launch.env")
    (uuid,) = (gpu["uuid"] for gpu in gpus("one_l4_580"))
    # The double quotes are Docker's own, each escaped for two parsers of systemd's.
    assert f'--gpus=\\\\\\"device={uuid}\\\\\\"' in words
    # This is Docker's answer where the toolkit's hook is missing, and the user reads it.
    assert 'could not select device driver "" with capabilities: [[gpu]]' in ran.out + ran.err


def test_two_gpus_reach_docker_as_two_devices(registry: Registry, old_node: Node) -> None:
    word = quoting.words(['--gpus="device=GPU-a,GPU-b"'])
    old_node.put("/root/two.env", quoting.environment_file({"WORDS": word}))
    image = f"tiny/http@{registry.digest('tiny/http', '1')}"
    old_node.put(
        "/etc/systemd/system/two.service",
        "[Service]\nType=oneshot\nEnvironmentFile=/root/two.env\n"
        f"ExecStart=/usr/bin/docker create --name=two $WORDS {image}\n",
    )
    old_node.run("systemctl daemon-reload && systemctl start two")
    shown = old_node.run("docker inspect -f '{{json .HostConfig.DeviceRequests}}' two").stdout
    (asked,) = json.loads(shown)
    assert asked["DeviceIDs"] == ["GPU-a", "GPU-b"]
    old_node.run("docker rm two")


def test_with_the_nvidia_runtime_a_docker_without_cdi_serves(site: Site, old_node: Node) -> None:
    old_node.docker_settings(runtimes={"nvidia": {"path": "runc"}})
    ran = site.tool("apply")
    assert ran.code == 0
    assert "ready, and it generates" in ran.out
    assert "the nvidia runtime, in its legacy mode: Docker's CDI is off" in ran.out
    assert "LEGACY_ACCESS" in ran.out
    assert show(old_node, UNIT, "ActiveState", "NeedDaemonReload") == {
        "ActiveState": "active",
        "NeedDaemonReload": "no",
    }
    assert old_node.run(f"systemd-analyze verify {UNIT} 2>&1").stdout == ""


def test_docker_20_has_the_flags_as_they_were_meant(old_node: Node) -> None:
    inspected = json.loads(old_node.run("docker inspect sglang-chat").stdout)[0]
    host, environment = inspected["HostConfig"], inspected["Config"]["Env"]
    (uuid,) = (gpu["uuid"] for gpu in gpus("one_l4_580"))
    assert host["Runtime"] == "nvidia"
    assert f"NVIDIA_VISIBLE_DEVICES={uuid}" in environment
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in environment
    has_the_flags_of_the_unit(host)
    slice_of = old_node.run(
        "cat /proc/$(docker inspect -f '{{.State.Pid}}' sglang-chat)/cgroup"
    ).stdout
    assert "/sglang-chat.slice/" in slice_of.replace("sglang.slice/", "")
    # As the drop-in's TimeoutStopSec: docker's own ten seconds would cut a drain.
    assert show(old_node, UNIT, "TimeoutStopUSec") == {"TimeoutStopUSec": "4min 5s"}
    assert inspected["Config"]["StopTimeout"] == 245


def test_a_stop_is_clean_there_too(site: Site, old_node: Node) -> None:
    assert site.tool("stop").code == 0
    assert show(old_node, UNIT, "ActiveState", "Result") == {
        "ActiveState": "inactive",
        "Result": "success",
    }
    assert old_node.run("docker ps -aq").stdout == ""
