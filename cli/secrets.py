"""The secrets of a run: read on the controller, before any node is touched."""

from __future__ import annotations

from collections.abc import Mapping

from cli.context import Run, Stop
from cli.exits import Exit
from deploys.secrets import Reader, read_secrets
from plans.secrets import NodeSecrets, Secret
from plans.wishes import Wishes


def secrets_of(
    run: Run, wishes: Mapping[str, Wishes], *, needed: bool = True
) -> dict[str, NodeSecrets]:
    """Return the secrets of each node. Where they are needed, raises Stop with all that are not
    to be had; where not, the plan says so."""
    reader = Reader(lambda line: run.err.print(line, markup=False, soft_wrap=True, style="yellow"))
    found = {node: read_secrets(reader, one) for node, one in wishes.items()}
    messages = [f"{node}: {line}" for node, one in found.items() for line in one.unread]
    if needed and messages:
        raise Stop(Exit.USAGE, *messages)
    return found


def hub_token_of(run: Run, secrets: Mapping[str, NodeSecrets]) -> Secret | None:
    """Return the token that the controller asks the hub with: the first node's that has one.

    Says of each that could not be read why: the hub is asked without it.
    """
    for node, one in secrets.items():
        for line in one.unread:
            if line.startswith("secrets."):
                run.err.print(f"{node}: {line}", markup=False, soft_wrap=True, style="red")
    return next((one.hub_token for one in secrets.values() if one.hub_token), None)
