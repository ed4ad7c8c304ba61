"""What all operations share: one remote command that runs a program, shown while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from paramiko import SSHException
from pyinfra import logger
from pyinfra.api import StringCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput
from typing_extensions import override

from operations.becoming import NotRoot
from operations.outcomes import outcome_of
from operations.tickets import held_of, is_dead
from plans.applylock import LOCK_MARK, locked, unlock
from plans.onnode import refusal_in
from plans.refusals import Refusal
from releases.log_lines import scan

Judge = Callable[[State, Host, bool, CommandOutput], bool]
"""Takes how a program ended and what it printed; says whether the operation succeeded."""


class Program(StringCommand):
    """A POSIX shell program, sent over standard input to ``sh -s`` on the node.

    The program is in no argument list and no log. ``show`` prints its output as
    it comes, so that long work shows progress. ``judge`` reads it when it ended.

    ``lock``: ``take`` runs it under the apply lock of the node, as all that changes a node
    must; ``keep`` holds the lock on where this run has it, for what only looks; ``no`` neither.
    A program that fails ends the apply of its node, and gives the lock back.
    """

    def __init__(
        self,
        text: str,
        what: str,
        *,
        show: bool = True,
        judge: Judge | None = None,
        lock: Literal["take", "keep", "no"] = "take",
    ) -> None:
        # The colon is a command that does nothing: it names the program in logs.
        super().__init__(f": {what}; exec sh -s")
        self.text = text
        self.what = what
        self.show = show
        self.judge = judge
        self.lock = lock

    @override
    def execute(self, state: State, host: Host, connector_arguments: Any) -> Any:
        connector_arguments.update(self.connector_arguments)
        held = held_of(host)
        locks = self.lock == "take" or (self.lock == "keep" and held.taken)
        text = locked(self.text, held.ticket, held=held.taken) if locks else self.text
        try:
            ok, output = self._run(text, state, host, connector_arguments)
            against = _token_against(output) if locks else None
            if against is not None and is_dead(against):
                # A run of this machine that is no more: what it left is ours to go on with.
                text = locked(self.text, held.ticket, held=held.taken, takes_over=against)
                ok, output = self._run(text, state, host, connector_arguments)
        except NotRoot as error:
            say_failed(host, f"{self.what}: {error}")
            return False, CommandOutput([])
        except (TimeoutError, OSError, EOFError, SSHException) as error:
            # pyinfra logs such an error and goes on: the node would count as done.
            say_failed(host, f"the connection was lost at: {self.what} ({_said(error)})")
            outcome_of(host).lost = True
            return False, CommandOutput([])
        held.taken = held.taken or (locks and ok)
        if not ok and _is_lost(host):
            say_failed(host, f"the connection was lost at: {self.what}; what it began may go on")
            outcome_of(host).lost = True
            return False, CommandOutput([])
        refused = refusal_of(output)
        if refused is not None:
            ok = False
            say_refused(host, refused)
        elif self.judge is not None:
            ok = self.judge(state, host, ok, output)
        if not ok and held.taken:
            give_back(state, host, connector_arguments)
        # pyinfra prints the output of a command that failed: what was not shown stays unshown.
        return ok, output if self.show else CommandOutput([])

    def _run(
        self, text: str, state: State, host: Host, connector_arguments: Any
    ) -> tuple[bool, CommandOutput]:
        return host.run_shell_command(
            self,
            print_output=self.show or state.print_output,
            print_input=state.print_input,
            **{**connector_arguments, "_stdin": whole(text)},
        )


def give_back(state: State, host: Host, connector_arguments: Any) -> None:
    """Give the apply lock of a node back, if this run holds it; what fails there is left to
    the lock's own end."""
    held = held_of(host)
    if not held.taken:
        return
    held.taken = False
    command = StringCommand(": give the apply lock back; exec sh -s")
    try:
        host.run_shell_command(
            command,
            **{**connector_arguments, "_stdin": whole(unlock(held.ticket)), "_timeout": 30},
        )
    except (NotRoot, TimeoutError, OSError, EOFError, SSHException) as error:
        logger.debug(f"{host.print_prefix}the apply lock was not given back: {_said(error)}")


def _is_lost(host: Host) -> bool:
    """Say whether the SSH connection is gone: a program's end was then not seen."""
    client = getattr(getattr(host, "connector", None), "client", None)
    if client is None:
        return False
    transport = client.get_transport()
    return transport is None or not transport.is_active()


def _token_against(output: CommandOutput) -> str | None:
    """Return the token of the lock that stood against a program, or None."""
    for line in output.stdout_lines:
        if line.startswith(LOCK_MARK):
            return line.removeprefix(LOCK_MARK).strip()
    return None


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def whole(text: str) -> str:
    """Return a program that begins only when all of its text has arrived.

    A shell runs what it reads as it reads it: of a program that a cut
    connection ends in the middle it would run the first half.
    """
    return f"{{\n{text}\n}}\nexit $?\n"


def refusal_of(output: CommandOutput) -> Refusal | None:
    """Return the refusal that a program on the node printed, or None."""
    found = map(refusal_in, output.stdout_lines)
    return next((one for one in found if one is not None), None)


def say_refused(host: Host, refusal: Refusal) -> None:
    """Keep why a program on a node refused, and log it for those who run plain pyinfra."""
    outcome_of(host).refusals.append(refusal)
    logger.error(
        f"{host.print_prefix}{refusal.code}: {refusal.seen}. "
        f"Needed: {refusal.needed}. {refusal.advice}"
    )


def say_failed(host: Host, sentence: str) -> None:
    """Keep why an operation failed on a node, and log it for those who run plain pyinfra."""
    outcome_of(host).failures.append(sentence)
    logger.error(f"{host.print_prefix}{sentence}")


FULL_WORDS = ("No space left on device", "no space left on device", "Disk quota exceeded")
FULL = "the disk is full: make room (df -h; sglang-node collect TARGET), then run the same again"


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
    full = [FULL] if any(word in line for line in said for word in FULL_WORDS) else []
    return [*last, f"{known[-1].meaning} {known[-1].advice}"] if known else [*last, *full]
