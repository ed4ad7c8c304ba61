"""What a node keeps, for tests of what is collected of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plans import paths
from plans.collection import Collection, Policy, collect
from plans.stock import CompilerLock, Image, Kept, ServiceLinks, Stock, Thing

DAY = 86400
NOW = 1796000000
UV = f"{paths.TOOLS}/uv-2"


def deployment(number: int, days: float = 100, service: str = "chat", **changes: Any) -> Kept:
    """Return a deployment of so many days ago, with a cache, an environment and an image."""
    then = NOW - int(days * DAY)
    made = Kept(
        service,
        number,
        then,
        then,
        served=True,
        readable=True,
        image=f"image@sha256:{number:064x}",
        environment=paths.environment(f"e{number}"),
        kernels=f"{paths.CACHES}/{number:016x}",
        size=10_000,
    )
    return replace(made, **changes)


def things(number: int, days: float = 100) -> tuple[Thing, ...]:
    """Return what that deployment is started from, as it lies on the node."""
    then = NOW - int(days * DAY)
    python = f"{paths.PYTHONS}/cpython-3.{number}"
    environment = Thing(
        "environment", paths.environment(f"e{number}"), 0, "755", then, 1000, True,
        f"{python}/bin/python3",
    )  # fmt: skip
    cache = Thing("cache", f"{paths.CACHES}/{number:016x}", 0, "700", then, 500)
    return environment, cache, Thing("python", python, 0, "755", then, 100)


def stock(numbers: tuple[int, ...] = (1, 2, 3, 4, 5), **changes: Any) -> Stock:
    """Return a node on which the last of these deployments runs, and that before it ran before."""
    made = Stock(
        clock=NOW,
        user=0,
        account=999,
        services={"chat": ServiceLinks(numbers[-1], numbers[-2], numbers[-1])},
        deployments=tuple(deployment(n, 100 - n) for n in numbers),
        things=tuple(one for n in numbers for one in things(n)),
        images=tuple(
            Image(f"image@sha256:{n:064x}", f"sha256:{n:064x}", 2000, int(n == numbers[-1]))
            for n in numbers
        ),
    )
    return replace(made, **changes)


def everything_goes() -> Collection:
    """Return a collection in which every kind of thing goes."""
    dead = CompilerLock(f"{paths.CACHES}/{5:016x}/home/ext/lock", NOW - DAY, held=False)
    half = Thing("half", f"{paths.deployments_of('chat')}/6.new", 0, "755", NOW)
    tool = Thing("tool", f"{paths.TOOLS}/uv-1", 0, "755", NOW - 100 * DAY)
    whole = stock()
    return collect(
        replace(whole, locks=(dead,), things=(*whole.things, half, tool)), Policy(2, DAY), UV
    )
