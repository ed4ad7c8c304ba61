"""One service over two nodes, the real SGLang on each: its ranks start, drain and stop as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .harness.machine import Node
from .harness.registry import Registry
from .site import (
    COUNTED_PORT,
    CPU_ARGUMENTS,
    Ran,
    Site,
    commands_of,
    count_commands,
    service,
    show,
    stream,
)

UNIT = "sglang@chat.service"
MEET = 20000


@pytest.fixture(scope="module")
def nodes(node_factory: Callable[..., Node]) -> Iterator[list[Node]]:
    """Two hosts with an L4, Docker and the images in their stores."""
    there = [node_factory(name, images=True) for name in ("rank0", "rank1")]
    for node in there:
        count_commands(node)
    yield there
    for node in there:
        node.discard()


@pytest.fixture(scope="module")
def site(nodes: list[Node], registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The same data for both: tensor parallel over one GPU of each."""
    over_two = service(
        nodes=[node.name for node in nodes],
        tp_size=2,
        network="host",
        arguments={**CPU_ARGUMENTS, "dist-init-addr": f"{nodes[0].address}:{MEET}"},
        # SGLang's engine for the CPU wants to know which core each rank has.
        environment={
            "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
            # Tensor parallel it compiles a piece of its embedding, and the image has no compiler.
            "TORCH_COMPILE_DISABLE": "1",
            "GLOO_SOCKET_IFNAME": nodes[0]
            .run(f"ip -o addr | awk '/ {nodes[0].address}\\// {{ print $2 }}'")
            .stdout.strip(),
        },
    )
    data = {"services": [over_two], "registry": {"mirrors": {"docker.io": registry.url}}}
    return Site(tmp_path_factory.mktemp("site"), nodes, data, port=COUNTED_PORT)


@pytest.fixture(scope="module")
def applied(site: Site) -> Ran:
    """The first apply."""
    ran = site.tool("apply")
    assert ran.code == 0
    return ran


def test_both_ranks_come_up_and_rank_0_generates(applied: Ran, nodes: list[Node]) -> None:
    assert "ready, and it generates" in applied.out
    assert f"ready, as rank 1 of 2 for {nodes[0].name}" in applied.out
    for rank, node in enumerate(nodes):
        listing = node.run("docker top sglang-chat -eo pid,args").stdout
        assert f"sglang::scheduler_TP{rank}" in listing


def test_a_second_apply_costs_each_node_one_command(
    applied: Ran, site: Site, nodes: list[Node]
) -> None:
    for node in nodes:
        commands_of(node)
    assert site.tool("apply").code == 0
    assert [len(commands_of(node)) for node in nodes] == [1, 1]


def test_one_of_them_is_not_restarted_alone(applied: Ran, site: Site, nodes: list[Node]) -> None:
    before = [show(node, UNIT, "InvocationID") for node in nodes]
    ran = site.tool("restart", "--limit", nodes[1].name)
    assert ran.code == 3
    assert "RANKS_APART" in ran.out + ran.err
    assert f"--limit {nodes[0].name},{nodes[1].name}" in ran.out + ran.err
    assert [show(node, UNIT, "InvocationID") for node in nodes] == before


def test_a_restart_of_both_finishes_what_is_in_flight(
    applied: Ran, site: Site, nodes: list[Node]
) -> None:
    before = [show(node, UNIT, "InvocationID")["InvocationID"] for node in nodes]
    flight = stream(nodes[0], 1500)
    ran = site.tool("restart")
    assert flight.finish() == (1500, True)
    assert ran.code == 0
    assert "drained: the log says that no request remained" in ran.out + ran.err
    assert "stopped with rank 0" in ran.out + ran.err
    after = [show(node, UNIT, "InvocationID", "NRestarts") for node in nodes]
    assert all(new["InvocationID"] != old for new, old in zip(after, before, strict=True))
    assert [one["NRestarts"] for one in after] == ["0", "0"]
