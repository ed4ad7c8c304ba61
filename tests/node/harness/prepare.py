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

from . import registry, sglang_cpu
from .cache import cache_dir
from .lab import Lab
from .trees import TREES, tree


def _timed(what: str, make: Callable[..., object], *given: object) -> None:
    began = time.monotonic()
    make(*given)
    seconds = time.monotonic() - began
    if seconds > 1:
        print(f"prepared {what} in {seconds:.0f} s", file=sys.stderr, flush=True)


def _trees(cache: Path) -> None:
    for name in TREES:
        _timed(f"the tree {name}", tree, cache, name)


def _servers(cache: Path) -> None:
    _timed("SGLang's environment", sglang_cpu.environment, cache)
    for version in sglang_cpu.VERSIONS:
        _timed(f"SGLang {version}", sglang_cpu.server, cache, version)
    _timed("the tiny model", sglang_cpu.model, cache)


def main() -> None:
    """Fill the cache; what is there already costs nothing."""
    cache = cache_dir()
    with ThreadPoolExecutor() as pool:
        for task in [pool.submit(_trees, cache), pool.submit(_servers, cache)]:
            task.result()
    _timed("the registry's images", registry.data, cache)
    lab = Lab()
    try:
        _timed("Docker's store", lab.store, "trixie")
    finally:
        lab.close()


if __name__ == "__main__":
    main()
