"""In which order a fleet is changed: batches of nodes, the next one once the one before is good.

The rule of ``spread``: of the nodes whose host key has the same value (a rack, a pool of
replicas), no two are in one batch. So a group of two or more is never down together. A node that
could not be reached counts as down: while it is, no other of its group is begun with.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

_SIZE = re.compile(r"([0-9]+)(%?)")


class BadSize(ValueError):
    """A size of batches cannot be read; the text says what to write."""


def size_of(words: str, nodes: int) -> int:
    """Return how many of so many nodes are in a batch: ``3`` is three, ``10%`` a tenth of them.

    A part is rounded down, and is one node at least. Raises BadSize.
    """
    found = _SIZE.fullmatch(words)
    if found is None or int(found[1]) == 0 or (found[2] and int(found[1]) > 100):
        raise BadSize(f"{words!r}: write a number of nodes, such as 3, or a part, such as 10%")
    number = int(found[1])
    return max(1, nodes * number // 100) if found[2] else number


def batches(
    nodes: Sequence[str],
    size: int,
    spread: Mapping[str, Hashable] | None = None,
    as_one: Iterable[Sequence[str]] = (),
) -> tuple[tuple[str, ...], ...]:
    """Return the nodes in batches of at most ``size``, each node in exactly one.

    ``spread``: the group of a node; no two nodes of a group are in one batch. A node without one
    is a group of its own. There are no more batches than size and groups ask for, and the first
    node of the inventory is in the first of them. ``as_one``: nodes that run ranks of one service,
    which are changed together: they are in one batch, also where they are more than ``size``, and
    count in the group of their first.
    """
    if size < 1:
        raise ValueError(f"a batch of {size} nodes")
    if units := _units(nodes, as_one):
        largest = max(len(unit) for unit in units.values())
        several = batches(list(units), max(1, size // largest), spread)
        return tuple(tuple(node for first in batch for node in units[first]) for batch in several)
    groups: dict[Hashable, list[str]] = {}
    for node in nodes:
        of = (spread or {}).get(node)
        groups.setdefault(("node", node) if of is None else ("group", of), []).append(node)
    if all(len(group) == 1 for group in groups.values()):
        return tuple(tuple(nodes[at : at + size]) for at in range(0, len(nodes), size))
    # Dealt like cards, group after group: those of one group never meet, as none is larger than
    # the number of batches, and no batch gets more than its share.
    count = max(-(-len(nodes) // size), *(len(group) for group in groups.values()))
    dealt: list[list[str]] = [[] for _ in range(count)]
    in_turn = [node for group in groups.values() for node in group]
    for place, node in enumerate(in_turn):
        dealt[place % count].append(node)
    order = {node: place for place, node in enumerate(nodes)}
    found = [tuple(sorted(batch, key=order.__getitem__)) for batch in dealt if batch]
    return tuple(sorted(found, key=lambda batch: order[batch[0]]))


def apart(
    several: Sequence[Sequence[str]],
    shares: Mapping[str, Iterable[str]],
    most: Mapping[str, int],
    spread: Mapping[str, Hashable] | None = None,
    as_one: Iterable[Sequence[str]] = (),
) -> tuple[tuple[str, ...], ...]:
    """Return batches in which no more nodes share a thing than may at once, else as they are.

    ``shares``: the things that a node has in common with others, such as a file system that it
    reads; ``most``: how many nodes of a batch may share one; a thing without a number is shared by
    as many as there are. ``spread`` and ``as_one``: as ``batches`` has them. No batch gets larger
    than the largest was; nodes of ``as_one`` stay together, also where they alone are more.
    """
    found: list[tuple[list[str], Counter[str]]] = []
    groups = spread or {}
    size = max(map(len, several), default=0)
    ranks = list(as_one)
    fits = True
    for batch in several:
        fits = fits and _within(_needs(batch, shares), most)
        units = _units(batch, ranks) or {node: [node] for node in batch}
        for unit in units.values():
            needs = _needs(unit, shares)
            place = next(
                (
                    one
                    for one in found
                    if len(one[0]) + len(unit) <= size
                    and _within(one[1] + needs, most, needs)
                    and groups.get(unit[0]) not in [groups[n] for n in one[0] if n in groups]
                ),
                None,
            )
            if place is None:
                place = ([], Counter())
                found.append(place)
            place[0].extend(unit)
            place[1].update(needs)
    return tuple(map(tuple, several)) if fits else tuple(tuple(batch) for batch, _ in found)


def _needs(nodes: Iterable[str], shares: Mapping[str, Iterable[str]]) -> Counter[str]:
    return Counter(one for node in nodes for one in set(shares.get(node, ())))


def _within(
    counts: Mapping[str, int], most: Mapping[str, int], of: Iterable[str] | None = None
) -> bool:
    which = counts if of is None else of
    return all(counts[one] <= most.get(one, math.inf) for one in which)


def held_back(
    nodes: Sequence[str], down: Sequence[str], spread: Mapping[str, Hashable]
) -> dict[str, str]:
    """Return the nodes that must not be taken down, each with the node of its group that is down.

    ``spread``: the group of a node, also of one that is down; a node without one is held by none.
    """
    first: dict[Hashable, str] = {}
    for node in down:
        if node in spread:
            first.setdefault(spread[node], node)
    return {
        node: first[spread[node]]
        for node in nodes
        if node not in down and node in spread and spread[node] in first
    }


def _units(nodes: Sequence[str], as_one: Iterable[Sequence[str]]) -> dict[str, list[str]]:
    """Return the nodes that go together, by the first of them; nothing where each goes alone."""
    unit_of = {node: [node] for node in nodes}
    for several in as_one:
        there = [node for node in several if node in unit_of]
        merged = {node for one in there for node in unit_of[one]}
        whole = [node for node in nodes if node in merged]
        unit_of.update(dict.fromkeys(whole, whole))
    if all(len(unit) == 1 for unit in unit_of.values()):
        return {}
    return {unit[0]: unit for node, unit in unit_of.items() if unit[0] == node}
