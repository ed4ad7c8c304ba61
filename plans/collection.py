"""What may be taken away of what earlier deployments left on a node, and what never is.

Kept are, of each service, the deployments that its links ``current`` and ``previous`` lead to, the
one that runs, the two newest that have answered, and the newest few; and all that any of these is
started from. Of the rest goes what was not used for longer than was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from plans import paths
from plans.refusals import Refusal
from plans.stock import RUNS_UNKNOWN, Image, Kept, Stock, Thing

GOOD_KEPT = 2
"""Deployments that have answered, the newest first, which are kept whatever was asked."""

LOCK_AGE = 600
"""Seconds from which on the lock of a compiler that no process holds is taken for a dead one's: a
compiler that has just begun may not have been seen with its file open."""

BUILD = re.compile(r"[0-9a-f]{16}")

OUR_TAGS = "sglang-bundle:"
"""Begins the names that the toolkit gives to images in Docker's store; all others are somebody's."""

ItemKind = Literal[
    "compiler lock", "half-made", "kernel cache", "environment", "Python", "tool", "image",
    "deployment",
]  # fmt: skip


@dataclass(frozen=True)
class Policy:
    """How much is kept: the newest ``keep`` deployments of a service, and all that was used within
    ``older_than`` seconds."""

    keep: int
    older_than: int


@dataclass(frozen=True)
class Item:
    """One thing that goes."""

    kind: ItemKind
    what: str  # a path, or an image by digest
    size: int  # bytes at the most: files and layers may be shared with what stays
    why: str
    owner: int | None = None  # of a directory: checked once more before it goes

    def as_dict(self) -> dict[str, object]:
        """Return the form in which it stands in JSON documents."""
        return {"kind": self.kind, "what": self.what, "bytes": self.size, "why": self.why}


@dataclass(frozen=True)
class Left:
    """One thing that is left though it looks unused, and why."""

    what: str
    why: str

    def as_dict(self) -> dict[str, object]:
        """Return the form in which it stands in JSON documents."""
        return {"what": self.what, "why": self.why}


@dataclass(frozen=True)
class Collection:
    """What is taken away on one node, in order, and what is not."""

    items: tuple[Item, ...] = ()
    left: tuple[Left, ...] = ()
    kept: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by service
    stock: Stock = field(default_factory=Stock, repr=False)
    refusals: tuple[Refusal, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that it frees at the most."""
        return sum(one.size for one in self.items)

    def as_dict(self) -> dict[str, Any]:
        """Return the form in which it stands in JSON documents."""
        return {
            "collect": [one.as_dict() for one in self.items],
            "left": [one.as_dict() for one in self.left],
            "kept": {name: list(numbers) for name, numbers in self.kept.items()},
            "bytes_at_most": self.size,
            "refusals": [one.as_dict() for one in self.refusals],
        }


def collect(stock: Stock, policy: Policy, tool: str) -> Collection:
    """Return what is taken away of a node's stock.

    ``tool``: path of the program of the toolkit's own that this version uses. Refuses where
    something could not be read: what a deployment needs must be known before anything goes.
    """
    refusals = tuple(_unread(stock))
    kept = {name: keeps(stock, name, policy) for name in sorted(stock.services)}
    if refusals:
        return Collection(stock=stock, kept=_numbers(kept), refusals=refusals)
    stays = [one for one in stock.deployments if one.number in kept[one.service]]
    goes = [one for one in stock.deployments if one.number not in kept[one.service]]
    refusals = tuple(_unknown_needs(stock, stays))
    if refusals:
        return Collection(stock=stock, kept=_numbers(kept), refusals=refusals)
    sort = _Sorter(stock, policy, stays, goes, tool)
    items = (
        *sort.halves(),
        *sort.caches(),
        *sort.environments(),
        *sort.pythons(),
        *sort.tools(),
        *sort.images(),
        *sort.deployments(),
    )
    # Of a cache that goes nothing else is said.
    gone = tuple(f"{one.what}/" for one in items)
    locks = [one for one in sort.locks() if not one.what.startswith(gone)]
    left = (*sort.left, *(Left(path, "it holds things with names of others") for path in stock.odd))
    return Collection((*locks, *items), left, _numbers(kept), stock)


def keeps(stock: Stock, service: str, policy: Policy) -> dict[int, str]:
    """Return the deployments of a service that are kept, each with the reason."""
    links = stock.services[service]
    there = sorted((one for one in stock.deployments if one.service == service), key=_newest_first)
    good = [one.number for one in there if one.served][:GOOD_KEPT]
    newest = [one.number for one in there][: policy.keep]
    found: dict[int, str] = {}
    for one in there:
        age = stock.clock - last_use(stock, one)
        if one.number == links.current:
            found[one.number] = "current"
        elif one.number == links.previous:
            found[one.number] = "previous"
        elif links.runs == one.number:
            found[one.number] = "it runs"
        elif links.runs == RUNS_UNKNOWN:
            found[one.number] = "what runs does not say which it is"
        elif one.number in good:
            found[one.number] = "one of the two newest that have answered"
        elif one.number in newest:
            found[one.number] = f"one of the {policy.keep} newest"
        elif age < policy.older_than:
            found[one.number] = f"used {days(age)} ago"
    return found


def last_use(stock: Stock, deployment: Kept) -> int:
    """Return when a deployment was last of use, seconds of Unix time.

    It was until the next one was made; a start writes to it as well. Without any time it is now.
    """
    later = [
        one
        for one in stock.deployments
        if one.service == deployment.service and one.number > deployment.number
    ]
    after = min(later, key=lambda one: one.number).made if later else None
    times = [one for one in (deployment.made, deployment.last, after) if one is not None]
    return min(max(times), stock.clock) if deployment.last is not None else stock.clock


def days(seconds: int) -> str:
    """Return an age as people say it."""
    return f"{seconds // 86400} days" if seconds >= 2 * 86400 else f"{seconds // 3600} hours"


def _newest_first(one: Kept) -> int:
    return -one.number


def _numbers(kept: dict[str, dict[int, str]]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(sorted(numbers)) for name, numbers in kept.items()}


def _unread(stock: Stock) -> Iterable[Refusal]:
    if stock.user != 0:
        yield _refusal("whoever looked is not root", "add --sudo, or connect as root")
    for what in stock.unread:
        yield _refusal(f"{what} could not be read", f"look at it on the node: sudo ls -la {what}")


def _unknown_needs(stock: Stock, stays: list[Kept]) -> Iterable[Refusal]:
    there = {(one.service, one.number) for one in stock.deployments}
    for name, links in sorted(stock.services.items()):
        if links.current is not None and (name, links.current) not in there:
            yield _refusal(
                f"the current deployment of {name}, {links.current}, is not there",
                "apply first: it makes a deployment anew",
                name,
            )
    for one in stays:
        if not one.readable:
            yield _refusal(
                f"{paths.LAUNCH_ENV} of deployment {one.number} of {one.service} could not be read",
                "apply first, or take that directory away by hand where it is not needed",
                one.service,
            )


def _refusal(seen: str, advice: str, service: str | None = None) -> Refusal:
    needed = "to know all that the deployments which stay are started from"
    return Refusal("COLLECT_UNREADABLE", seen, needed, advice, service)


class _Sorter:
    """Goes through a stock once; ``left`` gathers what is not taken though nothing needs it."""

    def __init__(
        self, stock: Stock, policy: Policy, stays: list[Kept], goes: list[Kept], tool: str
    ) -> None:
        self.stock, self.policy, self.tool = stock, policy, tool
        self.stays, self.goes = stays, goes
        self.left: list[Left] = []
        self.environments_gone: set[str] = set()

    def halves(self) -> Iterable[Item]:
        """What runs that were cut left half-made, or half taken away."""
        there = {one.path for one in self.stock.things}
        for one in self.stock.things:
            whole = one.path.rsplit(".", 1)[0]
            cut = one.kind == "environment" and (
                one.path.endswith((".new", ".gone"))
                # Alone it is the environment itself, on its way to its place.
                or (one.path.endswith(".old") and whole in there)
            )
            if one.kind == "half" or cut:
                yield from self._ours(one, "half-made", "a run that was cut left it")

    def caches(self) -> Iterable[Item]:
        """The compiled kernels of builds that nothing runs any more."""
        needed = {one.kernels for one in self.stays}
        for one in self._of("cache"):
            if one.path in needed:
                continue
            if not BUILD.fullmatch(one.name):
                self.left.append(Left(one.path, "no build of the toolkit has such a name"))
                continue
            why = self._why(one, {gone.kernels for gone in self.goes}, "no deployment's build")
            if why:
                yield from self._ours(one, "kernel cache", why)

    def environments(self) -> Iterable[Item]:
        """The environments that no deployment runs any more."""
        needed = {one.environment for one in self.stays} | {*self.stock.doors}
        named = {one.environment for one in self.goes}
        for one in self._of("environment"):
            path = one.path.removesuffix(".old")
            if path in needed or one.path.endswith((".new", ".gone")):
                continue
            if path != one.path and any(other.path == path for other in self._of("environment")):
                continue  # half-made, said already
            why = self._why(one, named, "no deployment's environment")
            if why:
                for item in self._ours(one, "environment", why):
                    self.environments_gone.add(one.path)
                    yield item

    def pythons(self) -> Iterable[Item]:
        """The Pythons that no environment runs any more."""
        used = [
            one.python
            for one in self._of("environment")
            if one.path not in self.environments_gone and not one.path.endswith((".new", ".gone"))
        ]
        for one in self._of("python"):
            if not any(python.startswith(f"{one.path}/") for python in used) and self._old(one):
                yield from self._ours(one, "Python", "no environment runs it")

    def tools(self) -> Iterable[Item]:
        """The toolkit's own programs of other versions than this one uses."""
        for one in self._of("tool"):
            if one.path != self.tool and self._old(one):
                yield from self._ours(one, "tool", "another version is used")

    def images(self) -> Iterable[Item]:
        """The images that deployments which go have named, and no other."""
        needed = {one.image for one in self.stays}
        kept_ids = {one.id for one in self.stock.images if one.reference in needed}
        for one in self.stock.images:
            if one.reference in needed:
                continue
            if why := self._why_not(one, kept_ids):
                self.left.append(Left(f"image {one.reference}", why))
            else:
                yield Item("image", one.reference, one.size, "no deployment that stays runs it")

    def deployments(self) -> Iterable[Item]:
        """The deployments themselves, last: a run that is cut goes on from them."""
        for one in sorted(self.goes, key=lambda one: (one.service, one.number)):
            age = self.stock.clock - last_use(self.stock, one)
            served = "" if one.served else ", never answered or did not stand its upgrade"
            path = paths.Deployment(one.service, one.number).directory
            yield Item("deployment", path, one.size, f"last used {days(age)} ago{served}")

    def locks(self) -> Iterable[Item]:
        """The locks of compilers that are no more, in caches that stay."""
        for one in self.stock.locks:
            if not one.held and one.made is not None and self.stock.clock - one.made >= LOCK_AGE:
                yield Item("compiler lock", one.path, 0, "the compiler that made it is no more")

    def _why_not(self, image: Image, kept_ids: set[str]) -> str:
        theirs = [tag for tag in image.tags if not tag.startswith(OUR_TAGS)]
        if image.id in kept_ids:
            return "a deployment that stays runs it by another name"
        if theirs:
            return f"it has a name that the toolkit did not give: {', '.join(theirs)}"
        if image.containers:
            return f"{image.containers} containers are made of it"
        return ""

    def _of(self, kind: str) -> list[Thing]:
        return [one for one in self.stock.things if one.kind == kind]

    def _old(self, one: Thing) -> bool:
        return one.last is not None and self.stock.clock - one.last >= self.policy.older_than

    def _why(self, one: Thing, named: set[str], orphan: str) -> str:
        """Return why a thing that nothing which stays needs goes; empty where it is too young."""
        if one.path in named:
            return "only deployments that go have used it"
        if not self._old(one):
            return ""
        return f"it is {orphan}, last written {days(self.stock.clock - (one.last or 0))} ago"

    def _ours(self, one: Thing, kind: ItemKind, why: str) -> Iterable[Item]:
        """Give the item, where the toolkit's users alone can have made it; else it is named."""
        if one.owner is None or one.owner not in (0, self.stock.account):
            self.left.append(Left(one.path, f"it belongs to user {one.owner}"))
        elif one.mode and int(one.mode, 8) & 0o022:
            self.left.append(Left(one.path, f"others may write to it (mode {one.mode})"))
        else:
            yield Item(kind, one.path, one.size, why, one.owner)
