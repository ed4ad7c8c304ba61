"""Which lines of a program on a node people see."""

from __future__ import annotations

import pytest

from cli.session import _for_people


@pytest.mark.parametrize(
    "line",
    [
        "[gpu-1] @kept 2.0G /opt/sglang/environments/0123456789abcdef (an environment of packages)",
        "[gpu-1] @refused STALE_PLAN something listens on port 30000 now",
        "[@fake/a] @lock 0123",
        "[gpu-1] @uv",
    ],
)
def test_what_programs_tell_us_is_not_shown(line: str) -> None:
    assert not _for_people(line)


@pytest.mark.parametrize(
    "line", ["[gpu-1] draining: requests 3", "[@fake/a] starting", "gpu-1  Verify chat", "", None]
)
def test_everything_else_is(line: str | None) -> None:
    assert _for_people(line)
