"""Services of one node that share a GPU: each must say its share, and the shares must fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from facts.records import Survey
from plans.decision import Decision
from plans.fit import SHARE, is_on_cpu
from plans.memory import MIB, given_flags, memory_data, number
from plans.refusals import Caution, Refusal
from plans.room import Room, gib, room_of, used_by
from plans.wishes import Service


@dataclass(frozen=True)
class Sharing:
    """What is said of the GPUs that several services use."""

    lines: tuple[str, ...]
    refusals: tuple[Refusal, ...]
    cautions: tuple[Caution, ...]


def sharing(survey: Survey, services: Sequence[tuple[Service, Decision]]) -> Sharing:
    """Return what is said of shared GPUs; services on the CPU are left alone.

    A share is mem-fraction-static. SGLang counts it of what is free when a server starts, so
    shares that add up to 1 fit in any order of starts.
    """
    users: dict[str, list[tuple[Service, Decision]]] = {}
    for service, decision in services:
        if not is_on_cpu(service):
            for one in used_by(survey, service, decision):
                users.setdefault(one.text, []).append((service, decision))
    lines, cautions = [], []
    refusals: list[Refusal] = []
    # Services that share several GPUs are told once.
    groups: dict[tuple[str, ...], list[str]] = {}
    for where, found in users.items():
        groups.setdefault(tuple(service.name for service, _ in found), []).append(where)
    for names, places in groups.items():
        if len(names) < 2:
            continue
        where = ", ".join(places)
        these = [(service, decision) for service, decision in services if service.name in names]
        shares = {
            service.name: number(given_flags(service, decision.release), SHARE)
            for service, decision in these
        }
        missing = [name for name, share in shares.items() if share is None]
        if missing:
            refusals += [_without(name, names, where) for name in missing]
            continue
        given = {name: share for name, share in shares.items() if share is not None}
        total = sum(given.values())
        terms = " + ".join(f"{share:g}" for share in given.values())
        # As decimals: 0.1 + 0.2 + 0.7 is no more than 1.
        if round(total, 6) > 1:
            refusals.append(_too_much(names, where, f"{terms} = {total:g}"))
            continue
        lines.append(
            f"{', '.join(names)} share {where}: {SHARE} {terms} = {total:g}; SGLang counts a share "
            "of what is free at its start, so the one that starts last gets less"
        )
        cautions += _tight(survey, these, where, total)
    return Sharing(tuple(lines), tuple(refusals), tuple(cautions))


def _without(name: str, names: tuple[str, ...], where: str) -> Refusal:
    others = ", ".join(other for other in names if other != name)
    each = int(90 / len(names)) / 100
    return Refusal(
        "GPU_SHARED_WITHOUT_SHARE",
        f"{where}: used by {name} and by {others}, and {name} has no {SHARE}",
        f"{SHARE} in the arguments of each, which together are no more than 1",
        f"give each its own GPU with `gpus:`, or each a share: arguments: {{{SHARE}: {each:g}}}",
        name,
    )


def _too_much(names: tuple[str, ...], where: str, terms: str) -> Refusal:
    return Refusal(
        "GPU_SHARES_TOO_LARGE",
        f"{where}: the shares of {', '.join(names)} are {terms}",
        f"{SHARE} of all of them together no more than 1",
        f"lower {SHARE} of one of them, or give it another GPU with `gpus:`",
    )


def _tight(
    survey: Survey, these: Sequence[tuple[Service, Decision]], where: str, total: float
) -> list[Caution]:
    room = room_of(survey, *these[0])
    outside = memory_data().outside_share_mib * MIB * len(these)
    if not isinstance(room, Room) or room.total * (1 - total) >= outside:
        return []
    return [
        Caution(
            "GPU_SHARES_TIGHT",
            f"{where}: the shares leave {gib(room.total * (1 - total))}, and {len(these)} servers "
            f"need about {gib(outside)} beside them (CUDA, graphs, activations)",
        )
    ]
