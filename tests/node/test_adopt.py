"""A box where somebody started SGLang by hand: adopt reads it, and changes nothing there."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plans.wishes import read_wishes

from .harness.machine import Node
from .harness.registry import Registry
from .site import COUNTED_PORT, Ran, Site, commands_of, count_commands

KEY = "a-key-that-nobody-may-read"
TOKEN = "hf_nobodymayreadthistoken"
EMBED = """\
[Unit]
Description=embeddings, by hand
[Service]
RootDirectory={root}
MountAPIVFS=yes
BindReadOnlyPaths=/srv/models
Environment=SGLANG_USE_CPU_ENGINE=1 OMP_NUM_THREADS=1
EnvironmentFile=/etc/embed.env
ExecStart=/opt/sglang/bin/python3 -m sglang.launch_server --model-path /srv/models/tiny \\
    --device cpu --is-embedding --host 127.0.0.1 --port 30001 --served-model-name vectors
ExecStartPre=/bin/true
Restart=always
[Install]
WantedBy=multi-user.target
"""


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node], registry: Registry) -> Iterator[Node]:
    """A host with a container and a unit that somebody started, neither of them ready yet."""
    node = node_factory("adopt", images=True)
    count_commands(node)
    image = f"lmsysorg/sglang@{registry.digest('lmsysorg/sglang', 'v0.5.22')}"
    node.run(
        "docker run -d --init --name sglang-llm --restart unless-stopped --shm-size 2g "
        "--device nvidia.com/gpu=all -p 8000:30000 -v /srv/models:/models:ro "
        f"-v /etc/hostname:/note:ro -e HF_TOKEN={TOKEN} -e NCCL_DEBUG=WARN {image} "
        "python3 -m sglang.launch_server --model-path /models/tiny --served-model-name tiny "
        f"--device cpu --host 0.0.0.0 --tp 1 --mem-fraction-static 0.5 --api-key {KEY}"
    )
    # The unit's server is no container: its files are the image's, its process the node's own.
    node.run(f"docker run -d --name files {image} sleep infinity")
    root = node.run("docker inspect --format '{{.GraphDriver.Data.MergedDir}}' files")
    node.put("/etc/embed.env", f"HF_TOKEN={TOKEN}\nSGLANG_MAX_NEW_TOKENS_LIMIT=500\n", 0o600)
    node.put("/etc/systemd/system/embed.service", EMBED.format(root=root.stdout.strip()))
    node.run("systemctl daemon-reload && systemctl enable --now embed")
    node.run(
        "for i in $(seq 100); do [ $(pgrep -fc '^[^ ]*python3 -m sglang.launch_server') -ge 2 ] "
        "&& exit; sleep 0.2; done; exit 1"
    )
    commands_of(node)
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An inventory that says how the node is reached, and nothing of what it serves."""
    site = Site(tmp_path_factory.mktemp("adopt"), [node], {}, port=COUNTED_PORT)
    site.write()
    return site


def state_of(node: Node) -> str:
    """Return what a change of the node would change."""
    return node.run(
        "docker ps -a --no-trunc --format '{{.ID}} {{.Names}} {{.State}}'; docker images -q | sort; "
        "systemctl show -p MainPID,NRestarts,ActiveState embed; ls /var/lib/sglang /opt/sglang; "
        "find /etc /root /opt /var/lib/docker/containers /usr/local -newer /etc/embed.env -type f "
        "! -path '/root/commands' ! -name '*-json.log' -printf '%p %T@\\n' | sort",
        check=False,
    ).stdout


@pytest.fixture(scope="module")
def adopted(site: Site, node: Node) -> tuple[Ran, list[str], Path]:
    """How adopt ended, which commands it ran on the node, and the inventory that it wrote."""
    before = state_of(node)
    commands_of(node)
    written = site.folder / "adopted.py"
    ran = site.tool("adopt", "--json", "--out", str(written), "-vvv")
    told = commands_of(node)
    assert state_of(node) == before, "the node is as it was"
    return ran, told, written


def test_both_are_read_in_one_command_before_the_survey(
    adopted: tuple[Ran, list[str], Path],
) -> None:
    ran, told, _ = adopted
    assert ran.code in (0, 3)
    assert ["sglang-adopt" in told[0], "sglang-survey" in told[1], len(told)] == [True, True, 2]
    (document,) = ran.document["nodes"]
    assert [(one["kind"], one["name"]) for one in document["found"]] == [
        ("container", "sglang-llm"),
        ("unit", "embed.service"),
    ]


def test_the_inventory_reproduces_them(adopted: tuple[Ran, list[str], Path]) -> None:
    _, _, written = adopted
    ((name, data),) = runpy.run_path(str(written))["gpu_nodes"]
    wishes = read_wishes(data["sglang"], name)
    llm, embed = wishes.services
    assert (llm.name, llm.model, llm.port, llm.address) == (
        "llm",
        "/srv/models/tiny",
        8000,
        "0.0.0.0",
    )
    assert (wishes.runtime_of(llm), llm.release, llm.shm_size) == ("image", "0.5.22", "2g")
    assert llm.arguments == {"device": "cpu", "mem-fraction-static": 0.5}
    assert llm.environment == {"NCCL_DEBUG": "WARN"}
    assert llm.api_key is not None
    assert (embed.name, embed.kind, embed.port, embed.output_cap) == ("embed", "embed", 30001, 500)
    assert (wishes.runtime_of(embed), embed.release) == ("wheel", "0.5.22")
    assert embed.environment == {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}


def test_what_has_no_place_is_listed_and_what_stops_them_is_said(
    adopted: tuple[Ran, list[str], Path],
) -> None:
    ran, _, _ = adopted
    (document,) = ran.document["nodes"]
    llm, embed = document["found"]
    assert [one["what"] for one in llm["not_carried"]] == ["mount /etc/hostname at /note"]
    assert [one["what"] for one in embed["not_carried"]] == ["ExecStartPre="]
    assert llm["stop"] == [
        "docker update --restart=no sglang-llm",
        "docker stop --time=600 sglang-llm",
    ]
    assert embed["stop"] == ["systemctl disable --now embed.service"]
    assert "are lost" in embed["requests"]
    assert "port 8000" in document["planned_without"]
    assert "PORT_TAKEN" not in [one["code"] for one in document["plan"]["refusals"]]


def test_no_secret_is_shown_at_any_verbosity(adopted: tuple[Ran, list[str], Path]) -> None:
    ran, _, written = adopted
    everything: Any = ran.out + ran.err + written.read_text(encoding="utf-8")
    assert KEY not in everything
    assert TOKEN not in everything
    assert "SGLANG_API_KEY" in everything
