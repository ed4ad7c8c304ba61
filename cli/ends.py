"""How a command ends that ends early: what it says, and with which exit code."""

from __future__ import annotations

import json
import os
import sys

import click

from cli.context import Stop
from cli.exits import Exit
from cli.inventory import TargetError
from cli.session import Interrupted

GOES_ON = (
    "interrupted: what was begun on a node may go on there, a start or stop to its end, another "
    "step for some seconds; run the command again"
)
"""What people are told of a run that was interrupted: systemd is not, nor at once a program."""


def code_of(error: BaseException) -> Exit:
    """Return the exit code of what ended a command before its own end."""
    if isinstance(error, Stop):
        return error.code
    if isinstance(error, KeyboardInterrupt | Interrupted | click.Abort):
        return Exit.INTERRUPTED
    if isinstance(error, TargetError | click.ClickException):
        return Exit.USAGE
    # Whoever read us has read enough (| head): that is no failure of ours.
    return Exit.OK if isinstance(error, BrokenPipeError) else Exit.FAILED


def told(error: BaseException) -> Exit | None:
    """Say why a command ended early, and return its exit code; None for what is a defect of ours."""
    match error:
        case Stop():
            for message in error.messages:
                click.echo(message, err=True)
            _document("; ".join(error.messages))
        case TargetError():
            click.echo(str(error), err=True)
            _document(str(error))
        case click.ClickException():
            error.show()
            _document(error.format_message())
        case BrokenPipeError():
            # Python would tell of it when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        case OSError():
            click.echo(str(error), err=True)
            _document(str(error), "FILE")
        case KeyboardInterrupt() | Interrupted() | click.Abort():
            lines = error.lines if isinstance(error, Interrupted) else []
            for line in [*lines, GOES_ON]:
                click.echo(line, err=True)
            _document("; ".join(["interrupted", *lines]), "INTERRUPTED")
        case _:
            return None
    return code_of(error)


def _document(text: str, code: str = "USAGE") -> None:
    """Print the one document that --json promises, where a command ended before it had any."""
    if "--json" in sys.argv[1:]:
        click.echo(json.dumps({"nodes": [], "error": {"code": code, "text": text}}))
