"""Many nodes in few words, and tables on narrow terminals."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from cli import report
from cli.summary import came_to, few, summary

READY = {"ok": True, "result": "ready"}
BAD = {"ok": False, "result": "silent"}


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({"error": {"code": "UNREACHABLE", "text": ""}}, "not reached"),
        ({"error": {"code": "NEED_ROOT", "text": ""}}, "failed"),
        ({"changes": [], "refusals": []}, "unchanged"),
        ({"changes": [{}], "refusals": []}, "to change"),
        ({"changes": [{}], "unresolved": ["x"]}, "unresolved"),
        ({"changes": [{}], "refusals": [{}]}, "refused"),
        ({"changes": [{}], "failures": ["x"], "refusals": [{}], "verified": {}}, "failed"),
        ({"changes": [{}], "failures": [], "verified": {}}, "changed"),
        ({"changes": [{}], "begun": False}, "not begun"),
        ({"changes": [{}], "begun": False, "failures": ["stopped"], "verified": {}}, "not begun"),
        ({"changes": [{}], "upgrade": "not begun"}, "not begun"),
        ({"changes": [{}], "upgrade": "refused", "unresolved": ["x"]}, "refused"),
        ({"changes": [{}], "verified": {"a": READY}}, "changed and ready"),
        ({"changes": [{}], "verified": {"a": READY, "b": BAD}}, "not verified"),
    ],
)
def test_what_a_node_came_to_is_one_word(document: dict[str, Any], word: str) -> None:
    assert came_to(document) == word


def test_the_line_counts_every_node_once() -> None:
    documents: list[dict[str, Any]] = [
        {"changes": []},
        {"changes": [{}]},
        {"error": {"code": "UNREACHABLE"}},
    ]
    assert summary(documents) == "3 nodes: 1 unchanged, 1 to change, 1 not reached"
    assert summary(documents[:1]) is None
    assert summary([{"services": []}, {"services": []}]) is None


def test_a_long_row_of_names_is_cut_with_how_many_are_left() -> None:
    names = [f"n{number}" for number in range(9)]
    assert few(names[:8]) == ", ".join(names[:8])
    assert few(names) == "n0, n1, n2 and 6 more"


def printed(width: int, terminal: bool) -> str:
    out = StringIO()
    console = Console(
        file=out, width=width, force_terminal=terminal, no_color=True, color_system=None
    )
    report.table(console, [("gpu-1", "chat", "ready", "")], ("node", "service", "state", "drift"))
    return out.getvalue()


def test_a_table_keeps_its_columns_where_it_fits_and_in_a_pipe() -> None:
    table = "node   service  state  drift\ngpu-1  chat     ready\n"
    assert printed(80, terminal=True) == table
    assert printed(20, terminal=False) == table


def test_a_table_that_does_not_fit_gives_each_row_lines_of_its_own() -> None:
    assert printed(20, terminal=True) == "gpu-1\n  service  chat\n  state    ready\n"
