"""Numbers of the operator's data: what only looks like one is refused, not guessed at."""

from __future__ import annotations


def a_number(value: object) -> object:
    """Return a value that may be a number. Raises ValueError for True, False and text."""
    if isinstance(value, bool):
        raise ValueError("is true or false: write a number")
    if isinstance(value, str):
        shown = "text" if "@" in value or len(value) > 60 else repr(value)
        raise ValueError(f"is {shown}: write a number, without quotes")
    return value
