"""What is written for systemd and Docker is read by them as it was meant."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans.quoting import QuotingError, docker_env_file, environment_file, words
from tests.unit import readers

LINE = st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]))
NAME = st.text(string.ascii_uppercase + "_", min_size=1)


@given(st.lists(LINE))
def test_words_split_into_just_these_words(items: list[str]) -> None:
    assert readers.split_words(words(items)) == items


@given(st.dictionaries(NAME, LINE))
def test_values_of_an_environment_file_are_read_as_they_are(values: dict[str, str]) -> None:
    assert readers.environment_file(environment_file(values, "a comment\nof lines")) == values


@given(st.lists(LINE))
def test_words_come_through_an_environment_file_too(items: list[str]) -> None:
    text = environment_file({"WORDS": words(items)})
    assert readers.split_words(readers.environment_file(text)["WORDS"]) == items


@given(st.dictionaries(NAME, LINE))
def test_values_of_a_docker_env_file_are_read_as_they_are(values: dict[str, str]) -> None:
    assert readers.docker_env_file(docker_env_file(values, "a comment")) == values


def test_json_and_both_quotes_survive() -> None:
    nasty = ['{"a": "b c"}', "it's", 'say "x"', "back\\slash", "$HOME", "%i", "", "`id`", "ünï"]
    text = environment_file({"X": words(nasty)})
    assert readers.split_words(readers.environment_file(text)["X"]) == nasty


@pytest.mark.parametrize("char", ["\n", "\r", "\0"])
def test_a_line_break_is_refused_and_not_written(char: str) -> None:
    for write in (environment_file, docker_env_file):
        with pytest.raises(QuotingError, match="NAME"):
            write({"NAME": f"a{char}b"})
