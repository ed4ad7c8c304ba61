"""The host behind pyinfra's ``host``."""

from __future__ import annotations

from pyinfra.api.host import Host
from pyinfra.context import ContextObject


def real_host(host: Host) -> Host:
    """Return the host behind pyinfra's ``host``, which stands for another one at another time."""
    if isinstance(host, ContextObject):
        real: Host = host._get_module()  # type: ignore[no-untyped-call]
        return real
    return host
