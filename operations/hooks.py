"""Runs the operator's own commands around a stop, on the node or on this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Mapping
from contextlib import suppress
from typing import Any

from gevent import subprocess
from pyinfra.api import StringCommand, operation
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput, OutputLine
from typing_extensions import override

from operations.outcomes import outcome_of
from operations.remote import Judge, Program, give_back, say_failed
from plans.hooks import Hook, Moment
from plans.proof_scripts import hook as program_of

TIMED_OUT = 124
"""How a command ends that took longer than it may, as timeout(1) has it."""


class OnController(StringCommand):
    """A line of shell that runs on this machine, for one node of the run."""

    def __init__(self, hook: Hook, environment: Mapping[str, str], judge: Judge) -> None:
        super().__init__(": a hook of the operator on this machine")
        self.hook = hook
        self.environment = environment
        self.judge = judge

    @override
    def execute(self, state: State, host: Host, connector_arguments: Any) -> Any:
        code, lines = _run(self.hook, self.environment)
        output = CommandOutput([OutputLine("stdout", line) for line in lines])
        ok = self.judge(state, host, code == 0, output)
        if not ok:
            give_back(state, host, connector_arguments)
        return ok, CommandOutput([])


def _run(hook: Hook, environment: Mapping[str, str]) -> tuple[int, list[str]]:
    """Run a hook with a time limit; return its exit code and its lines."""
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", hook.run],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return 126, [str(error)]
    try:
        out, _ = process.communicate(timeout=hook.limit)
        code = process.returncode
    except subprocess.TimeoutExpired:
        # All that it started too: a pipe that one of them holds would be waited for.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        code = TIMED_OUT
    return code, out.decode("utf-8", "replace").splitlines()


@operation(is_idempotent=False)
def ran(
    hook: Hook, moment: Moment, what: str, service: str, environment: Mapping[str, str]
) -> Generator[StringCommand, None, None]:
    """
    Run a command of the operator's around a stop.

    + hook: the command, where it runs, and how long it may take
    + moment: before a stop or after a verify
    + what: which one it is, in words
    + service: the service that is stopped or has started
    + environment: what the command is told

    What it printed is shown only where it failed, and of that the last line: the command itself
    may hold a token.

    **Example:**

    .. code:: python

        hooks.ran(wishes.hooks.before_stop[0], "before_stop", "hook 1", "chat", {}, name="Hook")
    """

    def judge(state: State, host: Host, ok: bool, output: CommandOutput) -> bool:
        if moment == "before_stop":
            outcome_of(host).left.add(
                service
            )  # whatever it came to: one before it may have done it
        if not ok:
            said = [line for line in output.stdout_lines if line.strip()][-1:]
            where = "on this machine" if hook.on == "controller" else "on the node"
            sentence = f"{service}: {what} ({where}) failed or took over {hook.limit:g} s"
            say_failed(host, ": ".join([sentence, *said]))
        return ok

    if hook.on == "controller":
        yield OnController(hook, environment, judge)
        return
    text = program_of(hook, environment)
    yield Program(text, f"run {what}", show=False, judge=judge, lock="keep")
