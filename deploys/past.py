"""Reads the deployments that a node has beside the current ones, in the one survey."""

from __future__ import annotations

from dataclasses import replace

from pyinfra.api.host import Host

from deploys.node import request_for
from facts.records import Survey
from facts.survey import read_survey

HISTORY = 20
"""Deployments of a service that are read beside the current one, unless more are asked for.

Each is three short texts; a node that is upgraded twice a month has twenty in ten months.
"""

MOST = 200
"""At most so many: the texts of one take about 6 kB, and a survey is one answer."""


def survey_with_past(host: Host, history: int = HISTORY, whole: str = "") -> Survey | None:
    """Return a node's survey with the texts of past deployments; None where it failed.

    ``whole`` is the number of the one of which every file is read, ``previous``, or ``back``: the
    one that a way back which was cut leads to, else the previous one.
    """
    return read_survey(host, replace(request_for(None), history=history, whole=whole))
