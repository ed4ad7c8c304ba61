"""The programs of the toolkit's own on a node."""

from __future__ import annotations

from facts.records import Survey, known
from plans import paths
from releases.wheels.tools import uv


def uv_path() -> str:
    """Return where uv is on a node: ``/opt/sglang/tools/uv-0.13.9``."""
    return f"{paths.TOOLS}/{uv().file_name}"


def uv_on_node(survey: Survey) -> bool:
    """Say whether this version of uv is on the node: it gets its name when it is whole."""
    there = survey.toolchain.tools
    return known(there) and uv_path() in there
