"""What the benchmarks of an upgrade make of their measurements."""

from __future__ import annotations

import pytest

from benchmarks.polling import away, spread
from benchmarks.upgrade_downtime import told


def polled(*answers: tuple[float, str]) -> str:
    return "".join(f"{when:.9f} {code}\n" for when, code in answers)


def test_away_is_from_the_last_good_answer_to_the_next() -> None:
    assert away(polled((0, "200"), (1, "503"), (2, "000"), (7.5, "200"), (8, "200"))) == 7.5
    # A late answer is no time away; of several times away the longest counts.
    assert (
        away(polled((0, "200"), (9, "200"), (10, "000"), (11, "200"), (13, "000"), (14, "200")))
        == 3
    )


@pytest.mark.parametrize(
    "answers",
    [
        (),
        ((0.0, "200"), (1.0, "200")),
        ((0.0, "200"), (1.0, "000")),
        ((0.0, "000"), (1.0, "200")),
    ],
)
def test_a_server_that_was_never_away_or_is_not_back_is_no_measurement(
    answers: tuple[tuple[float, str], ...],
) -> None:
    with pytest.raises(ValueError, match="never away, or is not back"):
        away(polled(*answers))


def test_the_median_and_both_ends_are_told() -> None:
    assert spread([3.0, 1.0, 2.0]) == "2.00 (1.00 to 3.00)"


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (
            [(32.0, 30.0), (33.0, 30.0), (31.0, 30.0)],
            "+2.0 s, where 3.0 s more are allowed: within",
        ),
        ([(64.0, 60.0)], "+4.0 s, where 6.0 s more are allowed: within"),
        ([(34.0, 30.0)], "+4.0 s, where 3.0 s more are allowed: NOT within"),
    ],
)
def test_an_upgrade_may_add_ten_percent_or_three_seconds(
    found: list[tuple[float, float]], says: str
) -> None:
    assert told(found).endswith(says)
