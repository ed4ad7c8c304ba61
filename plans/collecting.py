"""The program that collects on a node, as text, and what its lines say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from plans import paths
from plans.collection import Collection, Left
from plans.deployment import TEMPLATES, render
from plans.onnode import REFUSAL_MARK

GONE_MARK, LEFT_MARK, FREED_MARK = "@gone ", "@left ", "@freed "
"""Begin the lines by which the program says what it took away, what it left, how much that freed."""

OF_A_DIRECTORY = ("half-made", "kernel cache", "environment", "Python", "tool")


@dataclass(frozen=True)
class Collected:
    """What a node's program took away."""

    gone: tuple[str, ...] = ()  # paths, and images by digest
    left: tuple[Left, ...] = ()
    freed: int | None = None  # bytes that the file systems have more, as df tells; None: not told

    def as_dict(self) -> dict[str, object]:
        """Return the form in which it stands in JSON documents."""
        return {
            "gone": list(self.gone),
            "left": [one.as_dict() for one in self.left],
            "freed_bytes": self.freed,
        }


def collect_program(found: Collection) -> str:
    """Return the program that takes away what a collection says, and checks it all once more.

    It refuses as STALE_PLAN where the services' deployments are not as the collection saw them.
    """
    stock = found.stock
    goes = [one.what for one in found.items if one.kind == "deployment"]
    stays = [
        one
        for one in stock.deployments
        if paths.Deployment(one.service, one.number).directory not in goes
    ]
    made = {one.path: one.made for one in stock.locks}
    caches = {one.what.rsplit("/", 1)[0] for one in found.items if one.kind == "kernel cache"}
    return render(
        "collect.sh.j2",
        links=(TEMPLATES / "links.sh").read_text(encoding="utf-8"),
        refusal_mark=REFUSAL_MARK,
        deployments=paths.DEPLOYMENTS,
        doors=paths.DOORS,
        records=paths.RECORDS,
        keys=paths.KEYS,
        pythons=paths.PYTHONS,
        caches=paths.CACHES,
        roots=sorted({paths.STATE, paths.OPT, paths.CACHES, *caches}),
        services=[
            (
                name,
                "" if links.current is None else links.current,
                "" if links.previous is None else links.previous,
                " ".join(str(one.number) for one in stock.deployments if one.service == name),
            )
            for name, links in sorted(stock.services.items())
        ],
        stays=[paths.Deployment(one.service, one.number).file(paths.LAUNCH_ENV) for one in stays],
        locks=[(one.what, made[one.what]) for one in found.items if one.kind == "compiler lock"],
        things=[one for one in found.items if one.kind in OF_A_DIRECTORY],
        images=[one.what for one in found.items if one.kind == "image"],
        gone=[tuple(path.rsplit("/", 2)[1:]) for path in goes],
    )


def collected(lines: Iterable[str]) -> Collected:
    """Return what the lines of the program say."""
    gone: list[str] = []
    left: list[Left] = []
    freed: int | None = None
    for line in lines:
        if line.startswith(GONE_MARK):
            gone.append(line.partition("|")[2])
        elif line.startswith(LEFT_MARK):
            what, _, why = line.removeprefix(LEFT_MARK).partition("|")
            left.append(Left(what, why))
        elif line.startswith(FREED_MARK):
            freed = int(line.removeprefix(FREED_MARK))
    return Collected(tuple(gone), tuple(left), freed)
