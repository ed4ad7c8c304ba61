"""What programs on a node say where they refuse."""

from __future__ import annotations

from plans.codes import explain
from plans.onnode import NEEDED, REFUSAL_MARK, refusal_in


def test_a_refusal_keeps_the_command_that_mends_it() -> None:
    line = f"{REFUSAL_MARK}CACHE_NOT_OURS /c belongs to user 5|chown -R root:root /c"
    found = refusal_in(line)
    assert found is not None
    assert (found.code, found.seen) == ("CACHE_NOT_OURS", "/c belongs to user 5")
    assert "chown -R root:root /c" in found.advice


def test_a_line_with_no_code_of_ours_is_no_refusal() -> None:
    for line in ("STALE_PLAN x", f"{REFUSAL_MARK}NONSENSE x", REFUSAL_MARK, ""):
        assert refusal_in(line) is None


def test_every_code_is_explained() -> None:
    for code in NEEDED:
        assert explain(code).ways_out
