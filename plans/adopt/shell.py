"""Shell text taken apart into simple commands, as far as a hand-written start needs it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(
    r"\$(?:\$|([A-Za-z_][A-Za-z0-9_]*|[0-9])|\{([A-Za-z_][A-Za-z0-9_]*|[0-9]+)(?:(:?[-?+])([^}]*))?\})"
)
_OPERATORS = "();<>|&\n"


def commands(text: str) -> list[list[str]]:
    """Return the simple commands of a shell text, each as its words; redirections are left out.

    What a command prints into a word (``$(…)``) stays as it is written. Raises ValueError where a
    quote is not closed.
    """
    for here in ("$(pwd)", "`pwd`", "${PWD}", "$PWD"):
        text = text.replace(here, ".")
    found: list[list[str]] = [[]]
    skip = False
    for operator, word in _tokens(text):
        if operator and set(word) & set("<>"):
            skip = True  # its target
        elif operator:
            found.append([])
            skip = False
        elif skip:
            skip = False
        else:
            found[-1].append(word)
    return [one for one in found if one]


def _tokens(text: str) -> Iterator[tuple[bool, str]]:
    """Give the operators and words of a shell text, quotes taken away (POSIX.1-2024, XCU 2.3)."""
    word, begun, at = "", False, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            if text[at + 1 : at + 2] != "\n":
                word, begun = word + text[at + 1 : at + 2], True
            at += 2
        elif char in "\"'":
            inside, at = _quoted(text, at)
            word, begun = word + inside, True
        elif text.startswith("$(", at):
            end = text.find(")", at)
            if end < 0:
                raise ValueError("a $( is not closed")
            word, begun, at = word + text[at : end + 1], True, end + 1
        elif char == "#" and not begun:
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif char.isspace() and char != "\n":
            if begun:
                yield False, word
            word, begun, at = "", False, at + 1
        elif char in _OPERATORS:
            end = at + 1
            while char != "\n" and end < len(text) and text[end] in _OPERATORS[:-1]:
                end += 1
            # The number of a redirection (2>&1, but not --tp 2 >) is no word.
            if begun and not (char in "<>" and word.isdigit()):
                yield False, word
            yield True, text[at:end]
            word, begun, at = "", False, end
        else:
            word, begun, at = word + char, True, at + 1
    if begun:
        yield False, word


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Return what stands between the quotes that begin at a place, and the place behind them."""
    quote, found, at = text[at], "", at + 1
    while at < len(text):
        char = text[at]
        if char == quote:
            return found, at + 1
        if char == "\\" and quote == '"' and text[at + 1 : at + 2] in ("$", "`", '"', "\\", "\n"):
            found += text[at + 1].replace("\n", "")
            at += 2
        else:
            found, at = found + char, at + 1
    raise ValueError("a quote is not closed")


def filled(text: str, values: Mapping[str, str]) -> tuple[str, set[str]]:
    """Return a text with ``$NAME`` and ``${NAME:-default}`` filled in, and the names that are
    known nowhere (they stay as they are). ``$$`` is a dollar, as in compose files."""
    unknown: set[str] = set()

    def one(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name is None:
            return "$"
        value = values.get(name)
        how, default = found[3] or "", found[4] or ""
        if how.endswith("+"):
            return default if value else ""
        if value is not None and not (how.startswith(":") and not value):
            return value
        if how.endswith("-"):
            return default
        unknown.add(name)
        return found[0]

    return _VARIABLE.sub(one, text), unknown


def filled_words(words: Iterable[str], values: Mapping[str, str]) -> tuple[list[str], set[str]]:
    """Return words with their variables filled in, and the names that are known nowhere."""
    out: list[str] = []
    unknown: set[str] = set()
    for word in words:
        text, missing = filled(word, values)
        out.append(text)
        unknown |= missing
    return out, unknown
