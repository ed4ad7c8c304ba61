"""Starts from one shared file system: what a node reads, how many at once, what people are told."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts.records import ABSENT, Space
from plans import paths
from plans.batches import apart
from plans.plan import NodePlan
from plans.turns import Reads, limits, reads_of, told
from tests.unit.deployments import CAP, fresh, plan
from tests.unit.surveys import wishes

NFS = "10.0.0.5:/models"
NODES = [f"n{number}" for number in range(12)]


def planned(kind: Any = "nfs4", source: Any = NFS, **keys: Any) -> NodePlan:
    """Return the plan of a fresh node whose weights lie on such a file system."""
    node = fresh()
    there = Space(
        paths.WEIGHTS, True, paths.WEIGHTS, mount=paths.WEIGHTS, file_system=kind, source=source,
        free_bytes=10**13, read_only=False,
    )  # fmt: skip
    return plan(
        replace(node, spaces={**node.spaces, paths.WEIGHTS: there}), wishes({**CAP, **keys})
    )


def readers(**arguments: Any) -> int:
    (one,) = reads_of(planned(arguments=arguments))
    return one.readers


def test_a_node_reads_by_the_threads_of_the_servers_loader() -> None:
    assert reads_of(planned()) == (Reads(NFS, "nfs4", 1, 8),)
    extra = "model-loader-extra-config"
    assert readers(**{extra: {"num_threads": 32}}) == 32
    assert readers(**{extra: '{"enable_multithread_load": false}'}) == 1
    assert readers(**{extra: '{"num_threads": 1e999}'}) == 8
    prefetch = {"weight_loader_prefetch_checkpoints": True}
    assert readers(**prefetch) == 5
    assert readers(**prefetch, **{"weight-loader-prefetch-num-threads": 16}) == 17
    assert readers(**prefetch, **{extra: {"num_threads": 2}}) == 2


@pytest.mark.parametrize(
    ("kind", "source"), [("ext4", "/dev/sda1"), (ABSENT, NFS), ("nfs4", ABSENT)]
)
def test_nothing_is_said_of_a_disk_of_its_own_or_of_what_nobody_knows(
    kind: Any, source: Any
) -> None:
    assert reads_of(planned(kind, source)) == ()


def test_the_sentence_has_nodes_ranks_and_threads() -> None:
    reads = {node: (Reads(NFS, "nfs4", 8, 64),) for node in NODES}
    (line,) = told([NODES], reads, {}, split=False)
    assert line == (
        f"{NFS} (nfs4): 12 nodes start from it, all at once: 12 nodes x 8 ranks x 8 loader threads "
        "= 768 readers; shared_starts in the inventory limits how many at once"
    )
    (line,) = told([NODES[:4], NODES[4:8], NODES[8:]], reads, {NFS: 4}, split=True)
    assert line == (
        f"{NFS} (nfs4): 12 nodes start from it, 4 at once (shared_starts: 4): 4 nodes x 8 ranks x 8 "
        "loader threads = 256 readers"
    )
    mixed = {"n0": (Reads(NFS, "nfs4", 8, 64),), "n1": (Reads(NFS, "nfs4", 1, 1),)}
    (line,) = told([["n0", "n1"]], mixed, {}, split=False)
    assert "65 loader threads together" in line


def test_a_limit_is_named_only_where_it_made_the_batches() -> None:
    reads = {node: (Reads(NFS, "nfs4", 8, 64),) for node in NODES}
    (line,) = told([NODES[:3], NODES[3:6]], reads, {NFS: 4}, split=False)
    assert "6 nodes start from it, 3 at once: 3 nodes" in line
    assert "shared_starts" not in line
    (line,) = told([NODES[:6], NODES[6:]], reads, {NFS: 4}, split=True)
    assert "6 at once (ranks of one service start together, so more than shared_starts: 4)" in line


def test_batches_are_filled_again_and_groups_stay_apart() -> None:
    shares = {node: [NFS] for node in NODES}
    before = [NODES[:5], NODES[5:10], NODES[10:]]
    found = apart(before, shares, {NFS: 4})
    assert [len(batch) for batch in found] == [4, 4, 4]
    racks = {node: number // 2 for number, node in enumerate(NODES)}
    for batch in apart([NODES[::2], NODES[1::2]], shares, {NFS: 4}, racks):
        assert len(batch) <= 4
        assert len({racks[node] for node in batch}) == len(batch)


def test_one_node_at_a_time_is_no_matter_of_a_sentence() -> None:
    reads = {node: (Reads(NFS, "nfs4", 8, 64),) for node in NODES}
    assert told([[node] for node in NODES], reads, {}, split=False) == []
    assert told([["n0"]], {"n0": reads["n0"]}, {}, split=False) == []


def test_the_least_limit_of_those_that_share_holds() -> None:
    reads = {node: (Reads(NFS, "nfs4", 1, 8),) for node in ("a", "b", "c")}
    assert limits({"a": 4, "b": None, "c": 2}, reads) == {NFS: 2}
    assert limits({"a": None, "b": None, "c": None}, reads) == {}
    assert limits({"d": 1}, reads) == {}


@given(
    st.lists(st.lists(st.sampled_from("xyz"), max_size=2, unique=True), min_size=1, max_size=12),
    st.dictionaries(st.sampled_from("xyz"), st.integers(1, 4)),
    st.integers(1, 12),
)
def test_no_batch_has_more_than_may_share_and_none_is_lost(
    shared: list[list[str]], most: dict[str, int], size: int
) -> None:
    nodes = NODES[: len(shared)]
    shares = dict(zip(nodes, shared, strict=True))
    before = [nodes[at : at + size] for at in range(0, len(nodes), size)]
    after = apart(before, shares, most)
    assert sorted(node for batch in after for node in batch) == sorted(nodes)
    for batch in after:
        assert len(batch) <= size
        counts = Counter(one for node in batch for one in shares[node])
        assert all(number <= most.get(one, 99) for one, number in counts.items())
    if not most:
        assert after == tuple(map(tuple, before))


def test_the_ranks_of_a_service_stay_together() -> None:
    shares = {node: [NFS] for node in NODES[:5]}
    found = apart([NODES[:5]], shares, {NFS: 2}, None, [("n1", "n3", "n4")])
    assert found == (("n0", "n2"), ("n1", "n3", "n4"))
