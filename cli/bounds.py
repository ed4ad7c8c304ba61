"""What a run over several nodes may cost: how many may fail, and how long one may take."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import click

NODE_LIMIT_S = 4 * 3600.0
"""Seconds that one node may take in a run where nothing else is said.

The longest work of a run is a first start: fetching a large image and 700 GB of weights over
1 Gbit/s takes about two hours, and as much again is left for reading them.
"""

_MAX_FAIL = re.compile(r"([0-9]+)(%?)")


@dataclass(frozen=True)
class Bounds:
    """Limits of a run. A node beyond its own is given up; the others go on."""

    most_failed: str | None = None  # "3" or "10%": with more failed nodes nothing more is begun
    node_s: float = NODE_LIMIT_S

    def stops(self, failed: int, nodes: int) -> bool:
        """Say whether nothing more may be begun, with so many failed of so many nodes."""
        if self.most_failed is None:
            return False
        found = _MAX_FAIL.fullmatch(self.most_failed)
        assert found is not None
        number, percent = int(found[1]), found[2] == "%"
        return failed > (math.floor(nodes * number / 100) if percent else number)


UNLIMITED = Bounds()


class TookTooLong(Exception):
    """A node was given up: it took longer than a run may wait for it."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"given up after {limit_s:g} s (--node-limit)")


def read_bounds(max_fail: str | None, fail_fast: bool, node_limit: float | None) -> Bounds:
    """Return the limits that options name. Raises click.UsageError with what to write."""
    if max_fail is not None:
        found = _MAX_FAIL.fullmatch(max_fail)
        if found is None or (found[2] and int(found[1]) > 100):
            raise click.UsageError(
                f"--max-fail {max_fail!r}: write a number of nodes, such as 3, or a part, such as 10%"
            )
        if fail_fast:
            raise click.UsageError("--fail-fast is --max-fail 0: give one of them")
    if node_limit is not None and not 1 <= node_limit <= 7 * 24 * 3600:
        raise click.UsageError(
            f"--node-limit {node_limit:g}: write seconds, from 1 to a week (604800)"
        )
    return Bounds(
        "0" if fail_fast else max_fail, NODE_LIMIT_S if node_limit is None else node_limit
    )
