"""How many nodes may fail before nothing more is begun."""

from __future__ import annotations

import pytest

from cli.bounds import read_bounds


@pytest.mark.parametrize(
    ("max_fail", "failed", "nodes", "stops"),
    [
        (None, 100, 100, False),
        ("0", 0, 10, False),
        ("0", 1, 10, True),
        ("2", 2, 10, False),
        ("2", 3, 10, True),
        ("10%", 1, 10, False),
        ("10%", 2, 10, True),
        ("10%", 0, 9, False),
        ("10%", 1, 9, True),
        ("100%", 10, 10, False),
    ],
)
def test_nothing_more_is_begun_once_more_nodes_failed_than_may(
    max_fail: str | None, failed: int, nodes: int, stops: bool
) -> None:
    assert read_bounds(max_fail, False, None).stops(failed, nodes) is stops


def test_fail_fast_stops_at_the_first() -> None:
    bounds = read_bounds(None, True, None)
    assert not bounds.stops(0, 5)
    assert bounds.stops(1, 5)
