"""What is shown of the nodes at work: the longest first, few lines, none wider than the terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cli.events import SCHEMA
from plans.board import AT_MOST, Board


def board(*events: tuple[str, str, float]) -> Board:
    """Return a board that heard of these: the event, its node, when."""
    found = Board()
    for event, node, at in events:
        found.hear(event, {"node": node, "step": "Start chat", "ok": node != "bad"}, at)
    return found


def test_a_node_is_shown_with_what_it_does_and_for_how_long() -> None:
    one = board(("connecting", "a", 0), ("connecting", "b", 1), ("connected", "b", 2))
    assert one.lines(61, 80, 24) == [
        "a  is connected to  1 min 1 s",
        "b  is read  59 s",
        "2 of 2 nodes at work",
    ]


def test_nodes_that_do_nothing_are_a_count() -> None:
    one = board(
        ("connecting", "a", 0), ("connecting", "bad", 0), ("connecting", "c", 0),
        ("read", "a", 1), ("read", "bad", 1), ("connected", "c", 1), ("read", "c", 2),
        ("step-started", "c", 3), ("node-ended", "a", 4),
    )  # fmt: skip
    assert one.lines(7, 80, 24) == ["c  Start chat  4 s", "1 of 3 nodes at work; 1 failed"]
    one.hear("step-ended", {"node": "c", "ok": True}, 8)
    assert one.lines(9, 80, 24) == []


def test_one_node_alone_has_no_count() -> None:
    assert board(("step-started", "a", 0)).lines(1, 80, 24) == ["a  Start chat  1 s"]


def test_what_a_node_does_is_read_before_its_whole_name() -> None:
    name = "gpu-000.cluster-a.example.com"
    (line,) = board(("step-started", name, 0)).lines(3, 40, 24)
    assert line.startswith("gpu-000.clus")
    assert line.endswith("…  Start chat  3 s")
    assert len(line) < 40


NAMES = st.text("abc-.", min_size=1, max_size=50)


@given(
    st.lists(st.tuples(st.sampled_from([e for e in SCHEMA if "node" in SCHEMA[e]]), NAMES, st.floats(0, 99))),
    st.integers(20, 200),
    st.integers(3, 60),
)  # fmt: skip
def test_no_line_is_too_wide_and_no_run_too_long_for_the_terminal(
    events: list[tuple[str, str, float]], width: int, height: int
) -> None:
    lines = board(*events).lines(100, width, height)
    assert all(len(line) < width for line in lines)
    assert len(lines) < height
    assert len(lines) <= AT_MOST + 1
