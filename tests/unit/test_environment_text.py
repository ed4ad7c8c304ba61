"""The quick way of reading launch.env says what a shell's splitting says."""

from __future__ import annotations

import shlex

from hypothesis import example, given
from hypothesis import strategies as st

from facts.parsers.systemd import parse_environment
from plans.quoting import environment_file


@given(st.text(st.sampled_from("ab \t\"'\\$`#=;é"), max_size=12))
@example('"a b"')
@example('""')
def test_each_value_is_read_as_a_shell_splits_it(value: str) -> None:
    try:
        words = shlex.split(value.rstrip())
    except ValueError:
        words = [value.rstrip()]
    assert parse_environment(f"A={value}") == {"A": " ".join(words)}


@given(st.text(st.characters(exclude_categories=("Cc", "Zs", "Zl", "Zp")), max_size=20))
def test_what_is_written_is_read_back(value: str) -> None:
    # What stands before "$" and "`" there is systemd's escape and no shell's.
    plain = value.replace("$", "").replace("`", "")
    assert parse_environment(environment_file({"A": plain})) == {"A": plain}
