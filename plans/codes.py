"""The catalogue behind the codes: what a refusal or caution means, in full.

``explain`` answers ``sglang-node explain CODE``; the words are in
``plans/data/codes.yaml``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from releases.yaml_text import read_yaml

Text = Annotated[str, Field(min_length=3)]
Link = Annotated[str, Field(pattern=r"^https://\S+$")]


class Code(BaseModel):
    """One code in full."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9]*(_[A-Z0-9]+)*$")]
    title: Text
    seen: Text
    why: Text
    ways_out: Annotated[tuple[Text, ...], Field(min_length=1)]
    how_sure: Literal["seen", "inferred"]
    sources: Annotated[tuple[Link, ...], Field(min_length=1)]

    def as_dict(self) -> dict[str, Any]:
        """Return the form in which it stands in JSON documents."""
        return self.model_dump(mode="json")


class UnknownCode(LookupError):
    """No such code; ``near`` has the codes that come nearest, the nearest first."""

    def __init__(self, code: str, near: tuple[str, ...]) -> None:
        hint = (
            f"did you mean {', '.join(near)}?"
            if near
            else "every refusal and caution prints its own"
        )
        super().__init__(f"{code} is no code of the toolkit: {hint}")
        self.code = code
        self.near = near


@cache
def catalogue() -> Mapping[str, Code]:
    """Return every code, in the order of the file: host, GPUs, image, Docker, plan."""
    text = Path(__file__).with_name("data").joinpath("codes.yaml").read_text(encoding="utf-8")
    return {code: Code(code=code, **fields) for code, fields in read_yaml(text).items()}


def explain(code: str) -> Code:
    """Return a code in full, however its letters and dashes are written (``port-taken``).

    Raises UnknownCode, which names the nearest ones.
    """
    wanted = code.strip().upper().replace("-", "_").replace(" ", "_")
    known_ones = catalogue()
    if wanted in known_ones:
        return known_ones[wanted]
    near = difflib.get_close_matches(wanted, known_ones, n=3, cutoff=0.6)
    near += [one for one in known_ones if wanted and wanted in one and one not in near]
    raise UnknownCode(code.strip(), tuple(near[:5]))
