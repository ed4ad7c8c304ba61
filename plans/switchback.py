"""The program that goes back to an earlier deployment: the switch, over what is there already."""

from __future__ import annotations

from plans import paths
from plans.goingback import Back
from plans.scripts import switch_to


def switch_back(back: Back) -> str:
    """Return the program that makes an earlier deployment the current one and starts it.

    It is the very switch of an apply, with its guard: it refuses as STALE_PLAN where the node is
    not as it was seen.
    """
    assert back.service is not None
    kernels, weights = back.launch.get("SGLANG_KERNELS", ""), back.launch.get("SGLANG_WEIGHTS", "")
    return switch_to(
        back,
        back.service,
        caches=kernels.rpartition("/")[0] or paths.CACHES,
        cache_directory=kernels or paths.CACHES,
        owner=paths.USER if back.runtime == "wheel" else "",
        directories=[weights] if weights else [],
        switch_links=back.number != back.current,
    )
