"""``server.yaml`` arrives at the server as the operator wrote it, or is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from plans.checks import split_arguments
from plans.server_yaml import (
    ArgumentRefused,
    check_words,
    command_line,
    server_arguments,
    server_yaml,
)
from releases.table import RELEASES
from tests.unit import readers
from tests.unit.surveys import wish

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).filter(
    lambda text: not text.startswith("-")
)
NUMBER = st.one_of(
    st.integers(-(10**9), 10**9), st.floats(allow_nan=False, allow_infinity=False, width=32)
)
ITEM = st.one_of(TEXT, NUMBER, st.booleans(), st.dictionaries(TEXT, NUMBER, max_size=3))
VALUE = st.one_of(ITEM, st.lists(ITEM, min_size=1, max_size=4))
SWITCHES = frozenset({"enable-metrics", "is-embedding"})


def read(given_arguments: dict[str, Any]) -> list[str]:
    """Return the argument list that SGLang makes of these arguments of the operator."""
    service, _ = wish({})
    arguments = server_arguments(service, "0.5.23", None, given_arguments)
    return readers.server_arguments(server_yaml(arguments, "for a test"), SWITCHES)


def meant(value: Any) -> list[str]:
    """Return the words that a value stands for on a command line."""
    if isinstance(value, dict):
        return [json.dumps(value)]
    if isinstance(value, bool):
        return [str(value).lower()]
    return [str(value)]


@given(VALUE)
def test_every_value_arrives_as_it_was_written(value: Any) -> None:
    words = read({"some-flag": value})
    got = words[words.index("--some-flag") + 1 :]
    items = value if isinstance(value, list) else [value]
    wanted = [word for item in items for word in meant(item)]
    assert [normal(word) for word in got] == [normal(word) for word in wanted]


def normal(word: str) -> Any:
    """Return JSON as what it says: escaped or not, it is the same to the server."""
    try:
        document = json.loads(word)
    except ValueError:
        return word
    return document if isinstance(document, dict) else word


def test_a_switch_is_given_or_left_out() -> None:
    assert "--enable-metrics" in read({})
    assert "--enable-metrics" not in read({"enable-metrics": False})


@pytest.mark.parametrize("text", ["1", "true", "null", "1.0", "~", "0x1F", "2026-11-30", "a: b"])
def test_text_that_looks_like_something_else_stays_text(text: str) -> None:
    assert yaml.safe_load(server_yaml({"x": text}, ""))["x"] == text


@pytest.mark.parametrize("value", [None, [None], "-1x", ["--host"]])
def test_what_would_not_arrive_is_refused_and_the_flag_named(value: Any) -> None:
    service, _ = wish({})
    with pytest.raises(ArgumentRefused, match="some-flag"):
        server_arguments(service, "0.5.23", None, {"some-flag": value})


def test_the_model_is_pinned_by_its_commit_and_the_port_is_the_services() -> None:
    service, _ = wish({"port": 31000, "kind": "embed"})
    found = server_arguments(service, "0.5.23", "c1" * 20, {})
    assert (found["revision"], found["port"], found["is-embedding"]) == ("c1" * 20, 31000, True)


def test_what_a_file_cannot_carry_goes_on_the_command_line() -> None:
    for release in RELEASES:
        in_file, on_line = split_arguments({"lora-paths": ["a", "b"], "port": 1}, release)
        assert (in_file, on_line) == ({"port": 1}, {"lora-paths": ["a", "b"]})


def test_words_of_the_command_line() -> None:
    found = command_line({"a": True, "b": False, "c": [1, {"x": "ü"}], "d": "e f"})
    assert found == ("--a", "--c", "1", '{"x": "ü"}', "--d", "e f")
    check_words({"a": "plain"})
    with pytest.raises(ArgumentRefused, match="line break"):
        check_words({"a": ["x", "y\nz"]})
