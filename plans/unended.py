"""A way back that was cut: the deployment that it went to, and the one that it came from.

A switch back leaves a link in the deployment that it goes to, which its record takes away, or a
later ``verify`` that it answers. So a ``rollback`` that is run again goes on with the one that was
cut, where it would else take that for done and go the other way.
"""

from __future__ import annotations

from facts.records import ServiceState, Survey, known
from plans import paths


def came_from(survey: Survey, state: ServiceState) -> int | None:
    """Return the deployment that a way back to the current one came from, where that was cut before
    its record was written; 0 where it came from none. None: no way back was cut."""
    if not known(state.current):
        return None
    there = survey.files.get(paths.Deployment(state.name, state.current).file(paths.BACK))
    if there is None or not known(there.link):
        return None
    return int(there.link) if there.link.isascii() and there.link.isdigit() else 0
