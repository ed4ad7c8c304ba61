"""Nodes that start from one shared file system: how much of it is read at once, and by how many.

A start reads every weight of the model. A hundred nodes that start together from one NFS server are
slower than in turns, and each of them may pass its start limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from facts.records import known
from plans.gpus import gpus_needed
from plans.memory import given_flags
from plans.plan import NodePlan, ServicePlan
from plans.storage import network_space

THREADS = 8
"""Threads by which each rank reads its weights: ``DEFAULT_NUM_THREADS`` of the default loader in
SGLang 0.5.22 and 0.5.23 (``python/sglang/srt/model_loader/loader.py``)."""

PREFETCH_THREADS = 4
"""The same where it prefetches checkpoints: the default of ``--weight-loader-prefetch-num-threads``
(``python/sglang/srt/arg_groups/fields/model.py``); the loader itself then has one thread."""


@dataclass(frozen=True)
class Reads:
    """What the start of a node reads from one network file system."""

    source: str  # as it is mounted: "10.0.0.5:/models"
    kind: str  # "nfs4"
    ranks: int  # on this node
    readers: int  # threads of all of them


def reads_of(plan: NodePlan) -> tuple[Reads, ...]:
    """Return what a node reads over the network when its plan starts services, by file system."""
    found: dict[str, Reads] = {}
    for one in plan.services:
        if one.act not in ("start", "restart") or (read := _reads(plan, one)) is None:
            continue
        other = found.get(read.source, Reads(read.source, read.kind, 0, 0))
        found[read.source] = Reads(
            read.source, read.kind, other.ranks + read.ranks, other.readers + read.readers
        )
    return tuple(found.values())


def limits(most: Mapping[str, int | None], reads: Mapping[str, Sequence[Reads]]) -> dict[str, int]:
    """Return how many nodes may start at once from each file system: the least that one of those
    nodes says (``shared_starts`` in the inventory, by node); none where no node says a number."""
    found: dict[str, int] = {}
    for node, several in reads.items():
        if (limit := most.get(node)) is not None:
            for one in several:
                found[one.source] = min(limit, found.get(one.source, limit))
    return found


def told(
    batches: Iterable[Sequence[str]],
    reads: Mapping[str, Sequence[Reads]],
    most: Mapping[str, int],
    *,
    split: bool,
) -> list[str]:
    """Return a sentence for each file system that several nodes start from, of the batch that reads
    most of it.

    ``most``: how many may start at once from it, where that is limited; ``split``: whether that
    made batches smaller.
    """
    worst: dict[str, list[Reads]] = {}
    nodes: dict[str, int] = {}
    for batch in batches:
        at_once: dict[str, list[Reads]] = {}
        for one in (one for node in batch for one in reads.get(node, ())):
            at_once.setdefault(one.source, []).append(one)
            nodes[one.source] = nodes.get(one.source, 0) + 1
        for source, several in at_once.items():
            if _readers(several) > _readers(worst.get(source, [])):
                worst[source] = several
    return [
        _sentence(source, several, nodes[source], most.get(source), split=split)
        for source, several in worst.items()
        if nodes[source] > 1 and (len(several) > 1 or (split and source in most))
    ]


def _sentence(
    source: str, several: list[Reads], nodes: int, most: int | None, *, split: bool
) -> str:
    at_once = f"{len(several)} at once" if len(several) < nodes else "all at once"
    readers = _readers(several)
    shapes = {(one.ranks, one.readers) for one in several}
    if len(shapes) == 1:
        ((ranks, of_node),) = shapes
        threads = f"{of_node // ranks} loader threads" if of_node % ranks == 0 else "their threads"
        counted = f"{_count(len(several), 'node')} x {_count(ranks, 'rank')}"
        total = f"{counted} x {threads} = {readers} readers"
    else:
        total = f"{readers} loader threads together"
    by = ""
    if most is not None and len(several) > most:
        by = f" (ranks of one service start together, so more than shared_starts: {most})"
    elif most is not None and split:
        by = f" (shared_starts: {most})"
    advice = "" if most is not None else "; shared_starts in the inventory limits how many at once"
    return (
        f"{source} ({several[0].kind}): {nodes} nodes start from it, {at_once}{by}: {total}{advice}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _readers(several: Iterable[Reads]) -> int:
    return sum(one.readers for one in several)


def _reads(plan: NodePlan, one: ServicePlan) -> Reads | None:
    service = one.service
    if service is None or plan.survey is None or one.launch is None:
        return None
    space = network_space(plan.survey, one.launch.wishes, service)
    if space is None or not known(space.source):
        return None
    ranks = gpus_needed(service)
    threads = _threads(given_flags(service, one.decision.release))
    return Reads(space.source, str(space.file_system), ranks, ranks * threads)


def _threads(given: Mapping[str, Any]) -> int:
    """Return how many threads of one rank read weights, as its loader decides it."""
    extra = given.get("model-loader-extra-config") or {}
    if isinstance(extra, str):
        try:
            extra = json.loads(extra)
        except ValueError:
            extra = {}
    if not isinstance(extra, Mapping):
        extra = {}
    asked = {"enable_multithread_load", "num_threads"} & extra.keys()
    if given.get("weight-loader-prefetch-checkpoints") and not asked:
        return 1 + _number(given.get("weight-loader-prefetch-num-threads"), PREFETCH_THREADS)
    if extra.get("enable_multithread_load") is False:
        return 1
    return _number(extra.get("num_threads"), THREADS)


def _number(value: Any, default: int) -> int:
    try:
        return max(1, int(value))
    except (TypeError, ValueError, OverflowError):
        return default
