"""Weights come first: from a hub that breaks, or from a path that may be closed, while it serves.

The hub is a small one on the controller's side of the nodes' network; the client that asks it is
the hub's own, in the image of the service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.played_hub import COMMIT, Hub, serving

from .harness import sglang_cpu
from .harness.machine import Node
from .harness.registry import Registry
from .site import Site, service, show

UNIT = "sglang@chat.service"
REPO = "tiny/qwen2"
HOME = "/var/lib/sglang/hub"
WEIGHTS = "model.safetensors"
BLOCK = 100_000
TOKEN = "hf_neverSeenByTheService"


@pytest.fixture(scope="module")
def hub(node_cache: Path) -> Hub:
    """A gated hub with the tiny model, whose connection breaks once in its weights."""
    folder = sglang_cpu.model(node_cache)
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    # The same weights for another program: nobody needs them.
    files["pytorch_model.bin"] = b"not fetched"
    return Hub(REPO, files, token=TOKEN, cuts={WEIGHTS: [len(files[WEIGHTS]) // 2]})


@pytest.fixture(scope="module")
def endpoint(hub: Hub, bridge: str) -> Iterator[str]:
    """The hub's address, from the nodes and from here."""
    with serving(hub, bridge) as address:
        yield address


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host whose Docker has the image already."""
    node = node_factory("weights", images=True)
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(
    node: Node, registry: Registry, endpoint: str, tmp_path_factory: pytest.TempPathFactory
) -> Site:
    """An inventory with one service of a hub model; the hub is a mirror."""
    data = {
        "services": [service(model=REPO, served_name="tiny")],
        "registry": {"mirrors": {"docker.io": registry.url}},
        "hub": {"endpoint": endpoint, "parallel": 2},
    }
    return Site(tmp_path_factory.mktemp("site"), [node], data, environment={"HF_TOKEN": TOKEN})


def test_the_plan_says_what_has_to_come(site: Site) -> None:
    assert site.tool("lock").code == 0
    (node,) = site.tool("plan", "--json").document["nodes"]
    (change,) = [one for one in node["changes"] if one["kind"] == "weights"]
    assert change["what"] == f"{REPO}@{COMMIT[:12]}"
    assert change["why"].startswith(f"not in {HOME} yet: 6 files, ")


def test_a_gated_hub_is_one_sentence_and_nothing_is_changed(site: Site, node: Node) -> None:
    ran = site.tool("apply")
    assert ran.code == 1
    assert "HUB_GATED" in ran.out
    assert "with no token: the model is gated (HTTP 401)" in ran.out
    assert node.run("ls /var/lib/sglang/deployments 2>/dev/null", check=False).stdout == ""
    assert node.run("docker ps -aq").stdout == ""


def test_a_hub_model_is_fetched_through_a_break_and_served_offline(site: Site, hub: Hub) -> None:
    site.data["secrets"] = {"hub_token": {"env": "HF_TOKEN"}}
    ran = site.tool("apply", "-v")
    assert ran.code == 0
    assert "6 of 6 files, " in ran.out + ran.err
    assert "ready, and it generates" in ran.out
    # The first broke in the middle.
    assert len(hub.ranges(WEIGHTS)) == 2
    assert hub.ranges("pytorch_model.bin") == []


def test_the_service_has_neither_the_token_nor_a_way_to_write_weights(
    site: Site, node: Node
) -> None:
    seen = node.run("docker inspect sglang-chat").stdout
    inside = node.run("docker exec sglang-chat cat /proc/1/environ | tr '\\0' '\\n'").stdout
    assert "HF_HUB_OFFLINE=1" in inside
    assert "HF_ENDPOINT" not in inside
    assert TOKEN not in seen + inside
    assert "hub-token" not in seen
    assert f"{HOME}:{HOME}:ro" in seen
    found = node.run(f"grep -rl {TOKEN} /etc/systemd /var/lib/sglang /run/sglang; true").stdout
    assert found == ""


def test_a_second_apply_changes_nothing(site: Site, hub: Hub) -> None:
    hub.asked.clear()
    ran = site.tool("apply")
    assert ran.code == 0
    assert "unchanged, ready" in ran.out
    assert hub.asked == []


def test_a_file_that_was_lost_comes_again_without_a_restart(
    site: Site, node: Node, hub: Hub
) -> None:
    before = show(node, UNIT, "InvocationID")
    node.run(f"rm {HOME}/hub/models--tiny--qwen2/snapshots/{COMMIT}/tokenizer.json")
    (planned,) = site.tool("plan", "--json").document["nodes"]
    assert [one["kind"] for one in planned["changes"]] == ["weights"]
    assert site.tool("apply").code == 0
    assert "unchanged, ready" in site.tool("plan").out
    assert show(node, UNIT, "InvocationID") == before


def test_a_path_that_the_server_cannot_read_is_found_while_the_old_service_goes_on(
    site: Site, node: Node
) -> None:
    before = show(node, UNIT, "InvocationID", "MainPID")
    node.run(
        "cp -r /srv/models/tiny /srv/closed && useradd -m other && chown -R other /srv/closed"
        " && chmod 700 /srv/closed"
    )
    site.data["services"][0]["model"] = "/srv/closed"
    ran = site.tool("apply")
    assert ran.code == 1
    assert "WEIGHTS_UNREADABLE: /srv/closed (owner 1000:0, mode 0700)" in ran.out
    node.run("chmod -R a+rX /srv/closed && truncate -s 200000 /srv/closed/model.safetensors")
    ran = site.tool("apply")
    assert ran.code == 1
    assert "WEIGHTS_INCOMPLETE: /srv/closed/model.safetensors has " in ran.out
    node.run(
        "cp /srv/models/tiny/model.safetensors /srv/closed/ && "
        "sed -i s/Qwen2ForCausalLM/Qwen99ForCausalLM/ /srv/closed/config.json"
    )
    ran = site.tool("apply")
    assert ran.code == 1
    assert "ARCHITECTURE_UNKNOWN: SGLang 0.5.22 has no code for Qwen99ForCausalLM" in ran.out
    assert node.run("readlink /var/lib/sglang/deployments/chat/current").stdout == "1\n"
    assert show(node, UNIT, "InvocationID", "MainPID") == before
    assert node.run("docker ps -q | wc -l").stdout == "1\n"
