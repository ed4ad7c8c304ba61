"""A prefill/decode pair: which half of one a service is, and how a half is asked alone.

One server computes the cache of a prompt, the other generates from it; SGLang's own router gives
every request to both. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from plans.network import argument
from plans.wishes import Service

Half = Literal["prefill", "decode"]

BOOTSTRAP_PORT = 8998
"""Where a prefill half is met by decode halves, unless ``disaggregation-bootstrap-port`` says
another: SGLang's default, on the service's own address (srt/managers/disagg_service.py)."""

ALONE: Mapping[str, object] = {
    "bootstrap_host": "2.2.2.2",
    "bootstrap_room": 0,
    "ignore_eos": True,
}
"""What makes a request one to a half alone: as SGLang's own warm-up and health check do it, no cache
is sent or waited for (FAKE_BOOTSTRAP_HOST of srt/disaggregation/utils.py, 0.5.22 and 0.5.23).
Without a room it is refused with 400. A decode half generates from nothing then: any token may be
the last one."""


HEARTBEAT_S = 2
"""Seconds between two looks of a decode half at its prefill half: the least that SGLang takes. Two that
fail tell it that the other was restarted; with SGLang's own 5 a quick restart is not seen, and every
request then waits 300 s for a process that is gone (docs/upstream.md)."""


def half_of(service: Service) -> Half | None:
    """Return which half of a pair a service is, by its arguments; None where it answers alone."""
    match argument(service, "disaggregation-mode"):
        case "prefill":
            return "prefill"
        case "decode":
            return "decode"
        case _:
            return None


def bootstrap_port(service: Service) -> int | None:
    """Return the port at which decode halves meet this prefill half; None where it is none."""
    if half_of(service) != "prefill":
        return None
    given = argument(service, "disaggregation-bootstrap-port")
    return given if isinstance(given, int) and not isinstance(given, bool) else BOOTSTRAP_PORT


def asked_alone(service: Service) -> Mapping[str, object]:
    """Return what a request to the service itself holds beside what a client asks."""
    return ALONE if half_of(service) else {}


def environment_of_half(service: Service) -> Mapping[str, str]:
    """Return what a half has in its environment beside what every server has."""
    if half_of(service) != "decode":
        return {}
    return {"SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": str(HEARTBEAT_S)}
