"""Make everything that nodes need ahead of the tests: `python -m tests.node.harness.prepare`.

The tests make what is missing themselves, one thing after the other; this makes things that wait
for a network and things that need a processor at the same time, and says how long each took.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import door, packages, pythons, registry, sglang_cpu, wheels
from .cache import cache_dir, run
from .gpus import library
from .lab import Lab
from .trees import TREES, tree

made: list[str] = []
"""What took its time."""


def _timed(what: str, make: Callable[..., object], *given: object) -> None:
    began = time.monotonic()
    make(*given)
    seconds = time.monotonic() - began
    if seconds > 1:
        made.append(what)
        print(f"prepared {what} in {seconds:.0f} s", file=sys.stderr, flush=True)


def _trees(cache: Path) -> None:
    for name in TREES:
        _timed(f"the tree {name}", tree, cache, name)


def _bare(cache: Path) -> None:
    _timed("the tree fresh", tree, cache, "fresh")
    _timed("the build of Python", pythons.pythons, cache)
    _timed("the driver's library", library, cache)
    for name in packages.WANTED:
        _timed(f"the packages for {name}", packages.repository, cache, name)


def _servers(cache: Path) -> None:
    _timed("the wheels", wheels.wheels, cache)
    _timed("their index", wheels.index, cache)
    _timed("the router's wheels", door.router_wheels, cache)
    _timed("SGLang's environment", sglang_cpu.environment, cache)
    for version in wheels.VERSIONS:
        _timed(f"SGLang {version}", sglang_cpu.server, cache, version)
    _timed("the tiny model", sglang_cpu.model, cache)


def main() -> None:
    """Fill the cache; what is there already costs nothing."""
    cache = cache_dir()
    with ThreadPoolExecutor() as pool:
        for task in [pool.submit(part, cache) for part in (_trees, _bare, _servers)]:
            task.result()
    _timed("the registry's images", registry.data, cache)
    lab = Lab()
    try:
        _timed("Docker's store", lab.store, "trixie")
    finally:
        lab.close()
    for folder in ("wheels", "packages", "pythons", "") if made else ():
        size = run("du", "-sh", cache / folder).split()[0]
        print(f"{size} in {cache / folder}", file=sys.stderr)


if __name__ == "__main__":
    main()
