"""The command line: sglang-node COMMAND TARGET."""

from __future__ import annotations

import io
import json
import os
import signal
import sys

import click
import gevent

from cli import commands
from cli.context import Stop
from cli.exits import Exit
from cli.inventory import TargetError
from cli.session import Interrupted
from plans.version import VERSION

HELP = """Turn Linux hosts with NVIDIA GPUs into verified SGLang endpoints, and keep them so.

TARGET is an inventory file of pyinfra (inventories/site.py), host names, or
@local for this very machine.

\b
Exit codes: 0 done, nothing wrong; 1 failed on a node; 2 wrong usage or bad
input; 3 refused; 4 (plan --check) changes pending; 5 verification failed;
130 interrupted.
"""


@click.group(help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="sglang-node")
def cli() -> None:
    """Hold the commands."""


for _command in commands.ALL:
    cli.add_command(_command)


def document(text: str, code: str = "USAGE") -> None:
    """Print the one document that --json promises, where a command ended before it had any."""
    if "--json" in sys.argv[1:]:
        click.echo(json.dumps({"nodes": [], "error": {"code": code, "text": text}}))


def run() -> None:
    """Run the command line and end the process with its exit code."""
    # Into this greenlet, whichever runs: else gevent prints a traceback of the one it met.
    gevent.signal_handler(signal.SIGINT, gevent.kill, gevent.getcurrent(), KeyboardInterrupt)
    # A terminal of few letters shows what it can; it is no reason to end.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        cli(prog_name="sglang-node", standalone_mode=False)
    except Stop as stop:
        for message in stop.messages:
            click.echo(message, err=True)
        document("; ".join(stop.messages))
        sys.exit(int(stop.code))
    except TargetError as error:
        click.echo(str(error), err=True)
        document(str(error))
        sys.exit(int(Exit.USAGE))
    except click.ClickException as error:
        error.show()
        sys.exit(int(Exit.USAGE))
    except BrokenPipeError:
        # Whoever read us has read enough (| head): that is no failure of ours to tell of.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(int(Exit.OK))
    except OSError as error:
        click.echo(str(error), err=True)
        sys.exit(int(Exit.FAILED))
    except (KeyboardInterrupt, Interrupted, click.Abort) as interrupt:
        for line in interrupt.lines if isinstance(interrupt, Interrupted) else ():
            click.echo(line, err=True)
        click.echo("interrupted: what systemd was told goes on; run the command again", err=True)
        lines = interrupt.lines if isinstance(interrupt, Interrupted) else ()
        document("; ".join(["interrupted", *lines]), "INTERRUPTED")
        sys.exit(int(Exit.INTERRUPTED))
