"""A GPU box serves a model from the pinned image: the whole story, on one real node.

The node is booted systemd with a real Docker; SGLang is the real one on its CPU
device. Played are the L4 and the device files, which this machine does not have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .harness.machine import Node
from .harness.registry import Registry
from .site import (
    COUNTED_PORT,
    Site,
    commands_of,
    count_commands,
    has_the_flags_of_the_unit,
    service,
    stream,
)

UNIT = "sglang@chat.service"


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A Debian 13 host with an L4, Docker and an empty store."""
    node = node_factory("box", model=True)
    count_commands(node)
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(node: Node, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An inventory with one service."""
    return Site(
        tmp_path_factory.mktemp("site"),
        [node],
        {
            "services": [service()],
            "registry": {"mirrors": {"docker.io": registry.url}},
        },
        port=COUNTED_PORT,
    )


def show(node: Node, *properties: str) -> dict[str, str]:
    names = ",".join(properties)
    out = node.run(f"systemctl show --property={names} {UNIT}").stdout
    return dict(line.split("=", 1) for line in out.splitlines())


def test_a_survey_takes_one_command_and_says_what_the_node_is(site: Site, node: Node) -> None:
    ran = site.tool("survey")
    assert ran.code == 0
    assert "1 × NVIDIA L4, driver 580.105.08" in ran.out
    assert len(commands_of(node)) == 1


def test_a_plan_without_a_lock_says_what_is_unresolved(site: Site) -> None:
    ran = site.tool("plan")
    assert ran.code == 0
    assert "unresolved: lmsysorg/sglang:v0.5.22" in ran.out
    assert "sglang-node lock" in ran.err


def test_the_lock_has_the_digest_that_the_registry_gives(site: Site, registry: Registry) -> None:
    ran = site.tool("lock")
    assert ran.code == 0
    lock = (site.folder / "sglang.lock").read_text(encoding="utf-8")
    assert registry.digest("lmsysorg/sglang", "v0.5.22") in lock


def test_the_plan_shows_every_change_and_why(site: Site) -> None:
    ran = site.tool("plan", "--json")
    assert ran.code == 0
    (node,) = ran.document["nodes"]
    assert node["decision"] == "image"
    assert node["release"] == "0.5.22"
    assert node["refusals"] == []
    kinds = [change["kind"] for change in node["changes"]]
    assert kinds == ["deployment", "image", "unit", "drop-in", "daemon-reload", "enable", "start"]
    assert site.tool("plan", "--check").code == 4


def test_apply_ends_with_a_server_that_generates(site: Site, node: Node) -> None:
    ran = site.tool("apply")
    assert ran.code == 0
    assert "ready, and it generates" in ran.out
    state = show(node, "ActiveState", "StatusText", "NRestarts")
    assert state["ActiveState"] == "active"
    assert state["StatusText"].startswith("ready since")
    assert state["NRestarts"] == "0"


def test_the_record_says_how_long_the_start_took(node: Node) -> None:
    record = json.loads(node.read("/var/lib/sglang/deployments/chat/1/record.json"))
    assert record["result"] == "ready, and it generates"
    assert 1 <= record["first_answer_seconds"] < 300
    assert record["phases"][-1]["phase"] == "first answer"
    assert record["server_version"] == "0.5.22"


def test_the_container_runs_by_digest_with_the_flags_of_the_unit(
    node: Node, registry: Registry
) -> None:
    inspected = json.loads(node.run("docker inspect sglang-chat").stdout)[0]
    config, host = inspected["Config"], inspected["HostConfig"]
    digest = registry.digest("lmsysorg/sglang", "v0.5.22")
    assert config["Image"] == f"lmsysorg/sglang@{digest}"
    has_the_flags_of_the_unit(host)
    assert {limit["Name"] for limit in host["Ulimits"]} == {"memlock", "stack", "nofile"}
    assert config["Labels"]["sglang.deployment"] == "1"
    # The device came through CDI: its specification set this variable.
    assert any(word.startswith("PLAYED_GPU=GPU-") for word in _environment(node))
    # The shell of no one stands between --init and the server.
    assert config["Cmd"][:2] == ["sglang", "serve"]


def _environment(node: Node) -> list[str]:
    text = node.run("docker exec sglang-chat cat /proc/1/environ | tr '\\0' '\\n'").stdout
    return text.splitlines()


def test_a_second_apply_and_a_plan_change_nothing_and_cost_one_command(
    site: Site, node: Node
) -> None:
    commands_of(node)
    before = show(node, "MainPID", "InvocationID")
    ran = site.tool("apply")
    assert ran.code == 0
    assert "unchanged, ready" in ran.out
    assert len(commands_of(node)) == 1
    ran = site.tool("plan", "--check")
    assert ran.code == 0
    assert "unchanged, ready" in ran.out
    assert len(commands_of(node)) == 1
    assert show(node, "MainPID", "InvocationID") == before


def test_status_says_that_it_is_ready(site: Site) -> None:
    ran = site.tool("status")
    assert ran.code == 0
    line = ran.out.splitlines()[1].split()
    assert line[1:5] == ["chat", "0.5.22", "image", "ready"]


def test_a_stream_in_flight_survives_a_restart_whole(site: Site, node: Node) -> None:
    running = stream(node, 3000)
    ran = site.tool("restart")
    tokens, done = running.finish()
    assert (tokens, done) == (3000, True)
    assert ran.code == 0
    assert "drained: the log says that no request remained" in ran.err
    log = node.run(f"journalctl -u {UNIT} -o cat --no-pager").stdout
    assert "Draining requests and shutting down" in log
    assert "Remaining number of requests 0" in log
    assert "crashed with exit code -15" not in log


def test_a_second_start_compiles_nothing_and_the_caches_do_not_grow(site: Site, node: Node) -> None:
    listing = "find /var/cache/sglang -type f -printf '%P %s\\n' | sort"
    before = node.run(listing).stdout
    assert site.tool("restart").code == 0
    assert node.run(listing).stdout == before


def test_a_killed_scheduler_is_followed_by_a_restart(site: Site, node: Node) -> None:
    pid = node.run(
        "docker top sglang-chat -eo pid,args | awk '/sglang::scheduler/ {print $1}'"
    ).stdout
    node.run(f"kill -9 {pid.split()[0]}")
    node.run(
        f"for i in $(seq 300); do [ $(systemctl show -p NRestarts --value {UNIT}) -ge 1 ]"
        f" && [ $(systemctl show -p ActiveState --value {UNIT}) = active ] && exit 0; sleep 0.5; done; exit 1"
    )
    ran = site.tool("status")
    assert ran.code == 0
    assert "restarted 1 times by itself" in ran.out
    assert site.tool("verify").code == 0


def test_a_stopped_service_is_said_to_be_stopped_and_apply_starts_it(
    site: Site, node: Node
) -> None:
    ran = site.tool("stop")
    assert ran.code == 0
    assert show(node, "ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}
    assert "inactive" in site.tool("status").out
    assert site.tool("verify").code == 5
    ran = site.tool("apply")
    assert ran.code == 0
    assert "ready, and it generates" in ran.out


def test_a_stop_while_it_loads_is_no_failure(site: Site, node: Node) -> None:
    assert site.tool("stop").code == 0
    node.run(f"systemctl start --no-block {UNIT}; sleep 4")
    assert show(node, "ActiveState")["ActiveState"] == "activating"
    node.run(f"systemctl stop {UNIT}")
    assert show(node, "ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}
    assert node.run("docker ps -aq").stdout == ""


def test_a_rebooted_node_serves_again_by_itself(site: Site, node: Node) -> None:
    node.reboot()
    node.run(
        f"for i in $(seq 300); do [ $(systemctl show -p ActiveState --value {UNIT}) = active ]"
        " && exit 0; sleep 0.5; done; exit 1"
    )
    assert site.tool("verify").code == 0
    assert "unchanged, ready" in site.tool("plan").out


def test_a_changed_argument_makes_a_new_deployment(site: Site, node: Node) -> None:
    keys = site.data["services"][0]
    keys["arguments"]["max-running-requests"] = 8
    ran = site.tool("plan", "--diff")
    assert "+max-running-requests: 8" in ran.out
    assert "~ daemon-reload" not in ran.out
    assert site.tool("apply").code == 0
    links = node.run("cd /var/lib/sglang/deployments/chat && readlink current previous").stdout
    assert links.split() == ["2", "1"]


def test_an_edited_file_is_shown_and_refused(site: Site, node: Node) -> None:
    path = "/var/lib/sglang/deployments/chat/2/server.yaml"
    node.run(f"echo 'log-level: debug' >> {path}")
    ran = site.tool("apply")
    assert ran.code == 3
    assert "FILE_EDITED" in ran.out
    assert f"edited: {path}" in site.tool("status").out
    assert site.tool("apply", "--discard-edits").code == 0
    assert (
        "log-level"
        not in node.run("cat /var/lib/sglang/deployments/chat/current/server.yaml").stdout
    )


def test_remove_leaves_only_what_it_says_it_keeps(site: Site, node: Node) -> None:
    node.put(f"/etc/systemd/system/{UNIT}.d/50-mine.conf", "[Service]\nNice=5\n")
    ran = site.tool("remove", "--yes")
    assert ran.code == 0
    left = node.run(
        "find /etc/systemd/system /var/lib/sglang /var/cache/sglang /opt/sglang /run/sglang "
        "-path '*sglang*' -not -type d 2>/dev/null | sort"
    ).stdout.split()
    kept = "\n".join(ran.out.splitlines())
    assert left, "the operator's drop-in is gone"
    for path in left:
        assert any(str(parent) in kept for parent in Path(path).parents if len(parent.parts) > 3), (
            path
        )
    assert node.run("docker ps -aq").stdout == ""
    assert "sglang" not in node.run("docker images --digests").stdout
    assert node.run(f"systemctl is-enabled {UNIT}", check=False).stdout.strip() != "enabled"
