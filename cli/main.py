"""The command line: sglang-node COMMAND TARGET."""

from __future__ import annotations

import io
import signal
import sys
from importlib import import_module

import click
import gevent
from typing_extensions import override

from cli.summaries import SUMMARIES, module_of
from plans.version import VERSION

HELP = """Turn Linux hosts with NVIDIA GPUs into verified SGLang endpoints, and keep them so.

TARGET is an inventory file of pyinfra (inventories/site.py), host names,
@local for this very machine, or @ansible/PATH for an Ansible inventory.

\b
Exit codes: 0 done, nothing wrong; 1 failed on a node; 2 wrong usage or bad
input; 3 refused; 4 (plan --check) changes pending; 5 verification failed;
130 interrupted.
"""


class Commands(click.Group):
    """The commands, each imported once it is called: they bring pyinfra, pydantic and paramiko."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(SUMMARIES)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUMMARIES:
            return None
        command: click.Command = getattr(import_module(module_of(cmd_name)), cmd_name)
        # Only now: while it is imported, gevent would keep an interrupt until something waits.
        _take_interrupts()
        return command

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUMMARIES[name]) for name in self.list_commands(ctx)])


@click.group(cls=Commands, help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="sglang-node")
def cli() -> None:
    """Hold the commands."""


def _take_interrupts() -> None:
    # Into this greenlet, whichever runs: else gevent prints a traceback of the one it met.
    gevent.signal_handler(signal.SIGINT, gevent.kill, gevent.getcurrent(), KeyboardInterrupt)


def run() -> None:
    """Run the command line and end the process with its exit code."""
    # A terminal of few letters shows what it can; it is no reason to end.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        cli(prog_name="sglang-node", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        from cli.ends import told

        code = told(error)
        if code is None:
            raise
        sys.exit(int(code))
