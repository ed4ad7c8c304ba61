"""The plan of a fleet as one HTML file: to send to someone, read on a phone, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jinja2

from plans import text
from plans.codes import UnknownCode, explain
from plans.fleet import counts, folded, headline, refused_for, state_of
from plans.plan import NodePlan
from plans.version import VERSION

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    environment.globals |= {
        "state_of": state_of,
        "headline": headline,
        "title_of": _title,
        "one_line": text.one_line,
        "survey_lines": text.survey_lines,
        "anchor": text.file_name,
    }
    return environment


def _title(code: str) -> str:
    try:
        return explain(code).title
    except UnknownCode:
        return ""


def report(
    plans: Sequence[NodePlan], failed: Sequence[tuple[str, str]], target: str, at: str
) -> str:
    """Return the report as the text of one HTML file, with nothing that is loaded from elsewhere.

    ``failed``: nodes that have no plan, each with the sentence why. ``target``: what was planned.
    ``at``: the time, as people read it.
    """
    return _environment().get_template("report.html.j2").render(
        plans=plans,
        folds=folded(plans),
        reasons=refused_for(plans),
        counts=counts(plans),
        failed=failed,
        target=target,
        at=at,
        version=VERSION,
    )  # fmt: skip
