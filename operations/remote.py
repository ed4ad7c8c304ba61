"""What all operations share: one remote command that runs a program, shown while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyinfra import logger
from pyinfra.api import StringCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput
from typing_extensions import override

from operations.outcomes import outcome_of
from plans.scripts import REFUSAL_MARK
from releases.log_lines import scan

Judge = Callable[[State, Host, bool, CommandOutput], bool]
"""Takes how a program ended and what it printed; says whether the operation succeeded."""


class Program(StringCommand):
    """A POSIX shell program, sent over standard input to ``sh -s`` on the node.

    The program is in no argument list and no log. ``show`` prints its output as
    it comes, so that long work shows progress. ``judge`` reads it when it ended.
    """

    def __init__(
        self, text: str, what: str, *, show: bool = True, judge: Judge | None = None
    ) -> None:
        # The colon is a command that does nothing: it names the program in logs.
        super().__init__(f": {what}; exec sh -s", _stdin=whole(text))
        self.show = show
        self.judge = judge

    @override
    def execute(self, state: State, host: Host, connector_arguments: Any) -> Any:
        connector_arguments.update(self.connector_arguments)
        ok, output = host.run_shell_command(
            self,
            print_output=self.show or state.print_output,
            print_input=state.print_input,
            **connector_arguments,
        )
        if self.judge is not None:
            ok = self.judge(state, host, ok, output)
        # pyinfra prints the output of a command that failed: what was not shown stays unshown.
        return ok, output if self.show else CommandOutput([])


def whole(text: str) -> str:
    """Return a program that begins only when all of its text has arrived.

    A shell runs what it reads as it reads it: of a program that a cut
    connection ends in the middle it would run the first half.
    """
    return f"{{\n{text}\n}}\nexit $?\n"


def refusal_of(output: CommandOutput) -> tuple[str, str] | None:
    """Return the code and sentence with which a program on the node refused, or None."""
    for line in output.stdout_lines:
        if line.startswith(REFUSAL_MARK):
            code, _, sentence = line.removeprefix(REFUSAL_MARK).partition(" ")
            return code, sentence
    return None


def say_failed(host: Host, sentence: str) -> None:
    """Keep why an operation failed on a node, and log it for those who run plain pyinfra."""
    outcome_of(host).failures.append(sentence)
    logger.error(f"{host.print_prefix}{sentence}")


def failing(sentence: str) -> Judge:
    """Return a judge that keeps ``sentence``, and the program's last word, where it failed."""

    def judge(state: State, host: Host, ok: bool, output: CommandOutput) -> bool:
        if not ok:
            said = [line for line in (*output.stdout_lines, *output.stderr_lines) if line.strip()]
            say_failed(host, ": ".join([sentence, *_last_words(said)]))
        return ok

    return judge


def _last_words(said: list[str]) -> list[str]:
    """Return the line that a program ended with, and what a known line among them means."""
    # A program's own last word is what it left as it was; the reason stands before it.
    last = said[-2:] if said[-1:] and said[-1].startswith("nothing was ") else said[-1:]
    known = [one.entry for one in scan(said) if one.entry.is_fatal]
    return [*last, f"{known[-1].meaning} {known[-1].advice}"] if known else last
