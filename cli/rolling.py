"""Nodes changed batch after batch: the next one once the one before is good."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import click
from pyinfra.api.host import Host

from cli.context import Run
from cli.exits import Exit
from facts.survey import forget_survey
from plans.batches import BadSize, apart, batches, held_back, size_of
from plans.plan import NodePlan
from plans.turns import limits, reads_of, told
from plans.wishes import Wishes


def read_batch(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Return the value of --batch as it was given. Raises UsageError, before any node is asked."""
    if value is not None:
        try:
            size_of(value, 1)
        except BadSize as error:
            raise click.UsageError(f"--batch {error}") from None
    return value


def batches_of(
    run: Run,
    hosts: Iterable[Host],
    wishes: Mapping[str, Wishes],
    size: str,
    plans: Mapping[Host, NodePlan] | None = None,
    ranks: Sequence[Sequence[str]] | None = None,
) -> tuple[list[list[Host]], list[Host]]:
    """Return nodes in batches, by the option --batch and the inventory's ``spread``; and those that
    are in none, because another of their group is down as far as this run knows.

    ``wishes``: of those that have some. ``plans``: of nodes that are planned: so ``shared_starts``
    holds too, and how many start from one file system at once is printed. ``ranks``: the nodes of
    each service that runs on several, where the wishes do not say it.
    """
    named = {host.name: host for host in hosts}
    lost = [one["node"] for one in run.documents if "error" in one]
    asked = {host.name: host for host in run.inventory if host.name in {*named, *lost}}
    groups = {
        name: (key, value)
        for name, host in asked.items()
        if name in wishes
        and (key := wishes[name].spread) is not None
        and (value := _value(host, key)) is not None
    }
    held = held_back(list(named), lost, groups)
    for name, other in held.items():
        _say(run, f"{name}: not begun with: {other}, of the same {' '.join(groups[name])} (spread), "
                  "could not be reached or read, and counts as down", "red")  # fmt: skip
    if held:
        run.exits.append(Exit.FAILED)
    left = [name for name in named if name not in held]
    for name in left:
        key = wishes[name].spread if name in wishes else None
        if key is not None and name not in groups:
            _say(run, f"{name}: has no {key} (spread): it is a group of its own")
    if ranks is None:
        ranks = ranks_of(wishes[name] for name in left if name in wishes)
    found = batches(left, size_of(size, len(left)), groups, ranks) if left else ()
    if plans is not None:
        of_left = {host.name: plan for host, plan in plans.items() if host.name in left}
        found, lines = from_shared(found, of_left, wishes, groups)
        for line in lines:
            _say(run, line)
    return [[named[name] for name in batch] for batch in found], [named[name] for name in held]


def ranks_of(wishes: Iterable[Wishes]) -> list[tuple[str, ...]]:
    """Return the nodes of each service that runs on several: they are changed together."""
    return sorted({one.nodes for mine in wishes for one in mine.services if one.nodes})


def from_shared(
    several: Sequence[Sequence[str]],
    plans: Mapping[str, NodePlan],
    wishes: Mapping[str, Wishes],
    groups: Mapping[str, Hashable] | None = None,
) -> tuple[tuple[tuple[str, ...], ...], list[str]]:
    """Return batches of nodes, by name, in which no more start from one shared file system than the
    inventory lets; and sentences for people of how many do at once. ``groups``: as ``spread`` has
    them."""
    reads = {name: found for name, plan in plans.items() if (found := reads_of(plan))}
    most = limits({name: wishes[name].shared_starts for name in reads}, reads)
    sources = {name: [one.source for one in found] for name, found in reads.items()}
    split = apart(several, sources, most, groups, ranks_of(wishes[name] for name in plans))
    return split, told(split, reads, most, split=len(split) > len(several))


def in_turns(run: Run, going: Mapping[Host, NodePlan], wishes: Mapping[str, Wishes]) -> bool:
    """Say whether more nodes would start from one shared file system than may at once, so that they
    have to go in batches; where not, print how many do at once."""
    plans = {host.name: plan for host, plan in going.items()}
    split, lines = from_shared([list(plans)], plans, wishes)
    if len(split) > 1:
        _say(run, "in batches, as with --batch 100%, because of shared_starts in the inventory")
        return True
    for line in lines:
        _say(run, line)
    return False


def _say(run: Run, line: str, style: str = "") -> None:
    run.err.print(line, markup=False, soft_wrap=True, style=style)


def _value(host: Host, key: str) -> str | None:
    value: Any = host.data.get(key)
    return None if value is None else str(value)


def roll(run: Run, several: list[list[Host]], change: Callable[[list[Host]], bool]) -> list[Host]:
    """Change batch after batch until one fails; return the nodes that were not begun with.

    ``change`` does one batch and says whether it is good. What it meets is surveyed anew.
    """
    for number, batch in enumerate(several):
        names = ", ".join(host.name for host in batch)
        if len(several) > 1:
            said = f"batch {number + 1} of {len(several)}: {names}"
            run.err.print(said, markup=False, soft_wrap=True, style="bold")
        for host in batch:
            forget_survey(host)
        if change(batch):
            continue
        left = [host for rest in several[number + 1 :] for host in rest]
        if left:
            names = ", ".join(host.name for host in left)
            run.err.print(
                f"stopped at this batch: not begun with: {names}",
                markup=False, soft_wrap=True, style="red",
            )  # fmt: skip
            run.exits.append(Exit.FAILED)
        return left
    return []
