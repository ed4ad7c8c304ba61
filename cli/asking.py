"""Asks whether to go on, before something that cannot be had back."""

from __future__ import annotations

import sys

import click

from cli.context import Stop
from cli.exits import Exit


def ask(question: str, nothing: str, to_do: str, *, yes: bool) -> None:
    """Ask whether to go on, unless the operator said so. Raises Stop.

    ``nothing``: what is so where the answer is no. ``to_do``: what --yes is for, told where nobody
    is there to be asked.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise Stop(Exit.USAGE, f"nobody is there to be asked: {to_do}, add --yes")
    if not click.confirm(question, err=True):
        raise Stop(Exit.OK, nothing)
