"""What a short program of ours prints on a node that it does not change: one remote command."""

from __future__ import annotations

from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.facts import FactBase
from pyinfra.api.host import Host

TIMEOUT_S = 60


class Look(FactBase[tuple[str, ...]]):
    """The lines that a program prints."""

    def command(self, program: str, what: str) -> StringCommand:
        """Return the one remote command; ``what`` names it in logs."""
        return StringCommand(f": {what};", StringCommand("\n", program, _separator=""))

    @staticmethod
    def default() -> tuple[str, ...]:
        """Return no lines."""
        return ()

    def process(self, output: list[str]) -> tuple[str, ...]:
        """Return the lines unchanged."""
        return tuple(output)


def look(host: Host, program: str, what: str) -> tuple[str, ...]:
    """Return the lines that a program prints on a node; none where it could not be run."""
    try:
        return host.get_fact(Look, program=program, what=what, _timeout=TIMEOUT_S)
    except PyinfraError:
        return ()
