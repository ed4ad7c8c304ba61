"""A prefill/decode pair on one node: two real SGLang servers, the real sglang-router, one door.

The cache really goes from one half to the other: by Mooncake, over TCP on loopback where GPUs would
have RDMA. Four arguments stand for what SGLang's CPU device lacks.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .harness.machine import Node
from .harness.mirror import Mirror
from .harness.registry import Registry
from .load import Load, summary
from .site import COUNTED_PORT, CPU_ARGUMENTS, Ran, Site, commands_of, count_commands, service, show

KEY = "a-key-of-the-pair-s-door-0123456789"
BOOTSTRAP = 8998

TCP = {
    "MC_FORCE_TCP": "1",
    "MOONCAKE_PROTOCOL": "tcp",
    # Another way to hand over, to one and the same end: the usual one wants memory pinned by CUDA.
    "SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER": "1",
}
PREFILL = {"disaggregation-mode": "prefill", "disable-radix-cache": True}
DECODE = {
    "disaggregation-mode": "decode",
    "disaggregation-decode-retraction-backup": "cpu_tensor",
}


def half(name: str, port: int, arguments: dict[str, Any], address: str) -> dict[str, Any]:
    return service(
        name=name,
        port=port,
        release="0.5.23",
        network="host",
        # What SGLang finds itself by asking for the way to 8.8.8.8, which this node has none to.
        environment={**TCP, "SGLANG_HOST_IP": address},
        arguments={**CPU_ARGUMENTS, "mem-fraction-static": 0.3, **arguments},
    )


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host with an L4, Docker and the images in its store."""
    node = node_factory("paired", images=True)
    count_commands(node)
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(
    node: Node, registry: Registry, mirror: Mirror, tmp_path_factory: pytest.TempPathFactory
) -> Site:
    """Both halves on loopback, and the door on the node's own addresses."""
    return Site(
        tmp_path_factory.mktemp("site"),
        [node],
        {
            "services": [
                half("prefill", 30000, PREFILL, node.address),
                half("decode", 30001, DECODE, node.address),
            ],
            "registry": {"mirrors": {"docker.io": registry.url}},
            "mirrors": mirror.keys,
            "door": {
                "host": "0.0.0.0",
                "port": 8000,
                "keys": [{"env": "DOOR_KEY"}],
                "wait": 600,
                "pd_disaggregation": True,
                "lock": str(mirror.locks["door"]),
            },
        },
        port=COUNTED_PORT,
        environment={"DOOR_KEY": KEY},
    )


@pytest.fixture(scope="module")
def applied(site: Site) -> Ran:
    """The first apply."""
    ran = site.tool("apply")
    assert ran.code == 0
    return ran


def asked(node: Node, port: int, *words: str, **body: Any) -> tuple[int, str]:
    """Ask for a plain completion; return the status and what was said."""
    node.put("/root/ask.json", json.dumps({"model": "tiny", "prompt": "a", **body}))
    node.put("/root/key", f"Authorization: Bearer {KEY}\n", 0o600)
    out = node.run(
        "curl -sN -m 120 -w '\\n%{http_code}' -H 'Content-Type: application/json' -H @/root/key "
        f"-d @/root/ask.json http://{node.address if port == 8000 else '127.0.0.1'}:{port}"
        "/v1/completions"
    ).stdout
    said, _, status = out.rpartition("\n")
    return int(status), said


def says(node: Node) -> str:
    return node.run("grep '^pair' /run/sglang-door/state").stdout.split()[1]


def test_both_halves_are_proved_alone_and_the_pair_behind_the_door(applied: Ran) -> None:
    assert "ready, and it generates alone, as a prefill half" in applied.out
    assert "ready, and it generates alone, as a decode half" in applied.out
    assert "the door stands: 0.0.0.0 port 8000, before prefill, decode" in applied.out + applied.err


def test_a_client_of_the_door_is_answered_by_both_and_one_of_a_half_by_nobody(
    applied: Ran, node: Node
) -> None:
    status, said = asked(node, 8000, max_tokens=40, ignore_eos=True)
    assert (status, json.loads(said)["usage"]["completion_tokens"]) == (200, 40)
    status, said = asked(node, 8000, max_tokens=20, ignore_eos=True, stream=True)
    assert status == 200
    assert said.rstrip().endswith("data: [DONE]")
    for port in (30000, 30001):
        status, said = asked(node, port, max_tokens=4)
        assert (status, "bootstrap room" in said) == (400, True)


def test_both_halves_stand_the_harder_verify(applied: Ran, site: Site) -> None:
    ran = site.tool("verify", "--hard")
    assert ran.code == 0, ran.out


def test_a_second_apply_changes_nothing_in_one_command(
    applied: Ran, site: Site, node: Node
) -> None:
    commands_of(node)
    ran = site.tool("apply")
    assert ran.code == 0
    assert len(commands_of(node)) == 1
    assert site.tool("plan", "--check").code == 0


def test_a_restart_of_either_half_loses_no_request(applied: Ran, site: Site, node: Node) -> None:
    before = show(node, "sglang@prefill.service", "InvocationID")
    load = Load(
        f"http://{node.address}:8000", "tiny", clients=2, seconds=900, timeout_s=700, key=KEY
    )
    sending = threading.Thread(target=load.run)
    sending.start()
    time.sleep(5)
    ran = [site.tool("restart", "--service", name) for name in ("decode", "prefill")]
    time.sleep(5)
    load.stopping.set()
    sending.join()
    counted = summary(load.ledger)
    print(counted)
    assert [one.code for one in ran] == [0, 0]
    assert all("behind the door a pair generates" in one.out for one in ran)
    assert counted["failed"] == counted["truncated"] == counted["turned away"] == 0
    assert counted["answered"] == counted["requests"] >= 10
    assert show(node, "sglang@prefill.service", "InvocationID") != before


def test_halves_that_cannot_meet_are_said_to_be_no_pair(
    applied: Ran, site: Site, node: Node
) -> None:
    rule = f"INPUT -p tcp --dport {BOOTSTRAP} -j REJECT --reject-with tcp-reset"
    node.run(f"iptables -I {rule}")
    try:
        # The decode half asks every few seconds whether the other one is still there.
        node.run(
            "sleep 20; echo held > /run/sglang/door/decode; sleep 3; rm /run/sglang/door/decode"
        )
        node.run(
            "for i in $(seq 120); do grep -q '^pair fails' /run/sglang-door/state && exit 0; sleep 1; done; exit 1"
        )
        ran = site.tool("verify")
        assert ran.code == 5
        assert "no prefill/decode pair generates" in ran.out + ran.err
        assert "no prefill/decode pair generates" in site.tool("status").out
    finally:
        node.run(f"iptables -D {rule}")
    node.run(
        "for i in $(seq 120); do grep -q '^pair answers' /run/sglang-door/state && exit 0; sleep 1; done; exit 1"
    )
    assert site.tool("verify").code == 0
