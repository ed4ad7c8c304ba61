"""Shell text taken apart as a shell does it."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plans.adopt.shell import commands, filled

words = st.lists(
    st.text(st.characters(codec="ascii", exclude_characters="\0\r"), max_size=8), min_size=1
)


@given(words)
@settings(max_examples=200, deadline=None)
def test_quoted_words_come_back_as_they_are(drawn: list[str]) -> None:
    one = ["run", *drawn]
    text = shlex.join(one)
    if not any(here in text for here in ("$(pwd)", "`pwd`", "${PWD}", "$PWD")):
        assert commands(text) == [one]


@pytest.mark.parametrize(
    "text",
    [
        "a b # c\nd",
        "a a#b '#' \\# x",
        "serve --tp 2 > /dev/null 2>&1 &",
        "a \\\n  --b 'c;d' \"e|f\" && g; h || exit",
        "x \"a\\\"b\\$c\\d\" 'it'\\''s'",
        "a >/dev/null </dev/zero b",
        "a\n\n\nb ''",
        "(a b); { c; }",
    ],
)
def test_a_text_has_the_words_that_a_shell_gives_its_commands(text: str) -> None:
    mine = [one for one in commands(text) if one[0] not in ("{", "}")]
    # A function in place of every command prints the words that it was given.
    functions = "".join(
        f"{name}() {{ printf '<%s>' {name} \"$@\" >&3; echo >&3; }}\n"
        for name in sorted({one[0] for one in mine} - {"exit"})
    )
    done = subprocess.run(
        ["sh", "-c", f"exec 3>&1 >/dev/null 2>&1\n{functions}{text}\nwait"],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    mine = [one for one in mine if one != ["exit"]]
    assert done.stdout.splitlines() == ["".join(f"<{word}>" for word in one) for one in mine]


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a $(b"])
def test_what_is_not_closed_is_no_text(text: str) -> None:
    with pytest.raises(ValueError, match="not closed"):
        commands(text)


def test_variables_are_filled_in_as_far_as_they_are_known() -> None:
    known = {"A": "1", "EMPTY": ""}
    assert filled("$A ${A} ${A:-x} ${B-y} ${EMPTY:-z} ${EMPTY-z} ${A:+w} $$", known) == (
        "1 1 1 y z  w $", set(),
    )  # fmt: skip
    assert filled("${B} $C ${D:?no}", known) == ("${B} $C ${D:?no}", {"B", "C", "D"})
