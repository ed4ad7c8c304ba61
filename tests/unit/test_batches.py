"""Batches: each node once, none larger than asked, no two of a group together, no more than needed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans.batches import BadSize, batches, held_back, size_of

NODES = st.lists(st.text("abcdef0123", min_size=1, max_size=4), unique=True, max_size=40)
GROUPS = st.dictionaries(st.text("abcdef0123", min_size=1, max_size=4), st.integers(0, 5))


@given(NODES, st.integers(1, 12), GROUPS)
def test_every_node_is_in_one_batch_and_no_two_of_a_group_meet(
    nodes: list[str], size: int, spread: dict[str, int]
) -> None:
    found = batches(nodes, size, spread)
    assert sorted(node for batch in found for node in batch) == sorted(nodes)
    for batch in found:
        assert 1 <= len(batch) <= size
        groups = [spread[node] for node in batch if node in spread]
        assert len(set(groups)) == len(groups)
    largest = max(Counter(spread[n] for n in nodes if n in spread).values(), default=0)
    assert len(found) == max(-(-len(nodes) // size), largest)


@given(NODES, st.integers(1, 12), GROUPS)
def test_the_same_fleet_gives_the_same_batches_and_its_first_node_begins(
    nodes: list[str], size: int, spread: dict[str, int]
) -> None:
    found = batches(nodes, size, spread)
    assert found == batches(list(nodes), size, dict(spread))
    if nodes:
        assert found[0][0] == nodes[0]


def test_without_groups_they_come_as_the_inventory_has_them() -> None:
    assert batches(["a", "b", "c", "d", "e"], 2) == (("a", "b"), ("c", "d"), ("e",))
    assert batches([], 3) == ()


def test_two_racks_are_never_down_together() -> None:
    racks = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}
    assert batches(list(racks), 4, racks) == (("a1", "b1"), ("a2", "b2"))


@pytest.mark.parametrize(
    ("words", "nodes", "size"), [("3", 10, 3), ("10%", 100, 10), ("10%", 5, 1), ("100%", 7, 7)]
)
def test_a_size_is_a_number_or_a_part(words: str, nodes: int, size: int) -> None:
    assert size_of(words, nodes) == size


@pytest.mark.parametrize("words", ["0", "0%", "-1", "101%", "half", "", "1.5"])
def test_any_other_size_is_refused_with_what_to_write(words: str) -> None:
    with pytest.raises(BadSize, match="such as 3"):
        size_of(words, 10)


def test_a_group_with_a_node_that_is_down_is_held_back_whole() -> None:
    racks = {"a": "r1", "b": "r1", "c": "r2", "d": "r2", "e": "r1"}
    assert held_back(["b", "c", "d", "e", "f"], ["a", "g"], racks) == {"b": "a", "e": "a"}
    assert held_back(["b", "c"], [], racks) == {}
    assert held_back(["b", "f"], ["g", "h"], {"b": "r1"}) == {}
