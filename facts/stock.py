"""What a node keeps of the toolkit, as a pyinfra fact: one remote command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.facts import FactBase
from pyinfra.api.host import Host

PROGRAM = Path(__file__).with_name("stock.sh")

TIMEOUT_S = 300
"""Seconds after which it is given up: the sizes of hundreds of GB of small files take minutes."""


@dataclass(frozen=True)
class StockRequest:
    """Where the toolkit keeps things on a node: paths, the name of a file, and of a user.

    ``launch``: name of the file of a deployment that says what it is started from. ``doors``: the
    directory of the door's settings.
    ``packages``: of the caches the one that is no cache of kernels.
    """

    deployments: str
    launch: str
    doors: str
    environments: str
    pythons: str
    tools: str
    caches: str
    packages: str
    account: str

    def words(self) -> tuple[str, ...]:
        """Return the words that stock.sh takes."""
        return tuple(f"{key}={value}" for key, value in vars(self).items())


def stock_program() -> str:
    """Return the text of the program, without its comments and its indentation."""
    lines = (line.strip() for line in PROGRAM.read_text(encoding="utf-8").splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#")) + "\n"


class NodeStock(FactBase[tuple[str, ...]]):
    """The lines that stock.sh prints on a node."""

    def command(self, request: StockRequest) -> StringCommand:
        """Return the one remote command."""
        return StringCommand(
            ": sglang-stock;",
            "set --",
            *(QuoteString(word) for word in request.words()),
            StringCommand("\n", stock_program(), _separator=""),
        )

    @staticmethod
    def default() -> tuple[str, ...]:
        """Return no lines: what could not be read is not an empty node."""
        return ()

    def process(self, output: list[str]) -> tuple[str, ...]:
        """Return the lines unchanged."""
        return tuple(output)


def read_stock(host: Host, request: StockRequest) -> tuple[str, ...]:
    """Return the lines of a node's stock; none where they could not be read."""
    try:
        return host.get_fact(NodeStock, request=request, _timeout=TIMEOUT_S)
    except PyinfraError:
        return ()
