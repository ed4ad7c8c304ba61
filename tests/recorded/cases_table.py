"""Writes docs/cases.md from the cases beside this: ``python -m tests.recorded.cases_table``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

CASES = Path(__file__).parent / "cases"
TABLE = Path(__file__).parents[2] / "docs" / "cases.md"

RUNNER = "tests/unit/test_cases.py"
"""What runs the `check` of each case."""

DOES = {
    "prevented": "It cannot come about in what the toolkit sets up.",
    "refused": "The plan refuses it before any change, with the command that mends it.",
    "named": "It is recognised where it shows, and said what it means and what helps.",
    "not yet": "Nothing is done about it yet.",
}


class Case(BaseModel):
    """One public report, in our own words, and what the toolkit does about it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, Field(pattern=r"^[A-E]\d\d$")]
    link: Annotated[str, Field(pattern=r"^https://github\.com/[\w.-]+/[\w.-]+/issues/\d+$")]
    what: Annotated[str, Field(min_length=10, max_length=160)]
    does: Literal["prevented", "refused", "named", "not yet"]
    how: Annotated[str, Field(min_length=5)]
    test: Annotated[str, Field(pattern=r"^tests/[\w/]+\.py::\w+$")] | None = None
    check: tuple[dict[str, Any], ...] = ()

    @model_validator(mode="after")
    def _is_tested(self) -> Case:
        if self.does != "not yet" and not (self.test or self.check):
            raise ValueError(f"{self.id}: what is done about it has a test or a check")
        return self


def cases() -> dict[str, Case]:
    """Return every case by its id, in order; each in a file of its name."""
    found = {}
    for path in sorted(CASES.glob("*.yaml")):
        one = Case.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        if one.id != path.stem:
            raise ValueError(f"{path.name} says it is {one.id}")
        found[one.id] = one
    return found


FAMILIES = {
    "A": "A pip install",
    "B": "The host and what is chosen for it",
    "C": "Docker and systemd",
    "D": "While it runs",
    "E": "pyinfra, quoting, secrets",
}


def table() -> str:
    """Return the text of docs/cases.md."""
    every = list(cases().values())
    lines = [
        "# Public reports, and what becomes of them here",
        "",
        "Written by `python -m tests.recorded.cases_table` from `tests/recorded/cases/`; a test holds",
        f"it to that. Where a case has an input, `{RUNNER}` runs it; other tests are named.",
        "",
    ]
    lines += [f"- **{word}** ({_count(every, word)}): {text}" for word, text in DOES.items()]
    for letter, title in FAMILIES.items():
        lines += ["", f"## {title}", "", "| case | what was reported | here | how | test |"]
        lines += ["| --- | --- | --- | --- | --- |"]
        for one in every:
            if one.id.startswith(letter):
                cells = (_linked(one), one.what, one.does, one.how, _tests(one))
                lines.append(
                    f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
                )
    return "\n".join(lines) + "\n"


def _count(every: list[Case], word: str) -> int:
    return sum(one.does == word for one in every)


def _linked(one: Case) -> str:
    _, _, name = one.link.partition("github.com/")
    return f'[{one.id}]({one.link} "{name.replace("/issues/", "#")}")'


def _tests(one: Case) -> str:
    named = [f"`{RUNNER.rsplit('/', 1)[1]}`"] if one.check else []
    if one.test:
        path, _, name = one.test.partition("::")
        named.append(
            f"`{path.removeprefix('tests/')}` {name.removeprefix('test_').replace('_', ' ')}"
        )
    return ", ".join(named) or "–"


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
