"""Programs hold the apply lock of their node, and what becomes of a run that meets another's."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, cast

import pytest
from paramiko import SSHException
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput, OutputLine

from operations.outcomes import outcome_of
from operations.remote import Program, failing
from operations.tickets import held_of


class Node:
    """A host that answers each command with what was put down for it, and keeps what it got."""

    print_prefix = ""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.programs: list[str] = []

    def run_shell_command(self, command: Any, **arguments: Any) -> tuple[bool, CommandOutput]:
        """Take a command, as pyinfra's connectors do."""
        self.programs.append(arguments["_stdin"])
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        ok, lines = answer
        return ok, CommandOutput([OutputLine("stdout", line) for line in lines])


class Run:
    """What of pyinfra's state a program asks for."""

    print_output = print_input = False


def execute(node: Node, program: Program) -> bool:
    """Execute a program on a node."""
    ok, _ = program.execute(cast("State", Run()), as_host(node), {})
    return bool(ok)


def as_host(node: Node) -> Host:
    """Return the node as what it stands in for."""
    return cast("Host", node)


def dead_token() -> str:
    """Return the token of a run of this machine that is no more."""
    code = "from operations.tickets import new_ticket as n; print(n().token)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout.strip()


WORKS: tuple[bool, list[str]] = (True, [])
OTHERS = (False, ["@lock 0123-1-a", "@refused APPLY_RUNNING apply of bob since 12:03 works on it"])


def test_the_programs_of_a_run_have_one_token_and_know_that_it_is_held() -> None:
    node = Node(WORKS, WORKS, WORKS)
    for name in ("write", "switch"):
        assert execute(node, Program("true", name))
    assert execute(node, Program("true", "look", lock="no"))
    token = held_of(as_host(node)).ticket.token
    assert [token in text for text in node.programs] == [True, True, False]
    lost = "the apply lock of this run was taken away"
    assert [lost in text for text in node.programs] == [False, True, False]


def test_what_only_looks_takes_no_lock_and_keeps_one() -> None:
    node = Node(WORKS, WORKS, WORKS)
    execute(node, Program("true", "verify", lock="keep"))
    execute(node, Program("true", "write"))
    execute(node, Program("true", "verify", lock="keep"))
    assert ["apply.lock" in text for text in node.programs] == [False, True, True]


def test_a_run_that_meets_another_is_refused_and_does_no_more() -> None:
    node = Node(OTHERS)
    assert not execute(node, Program("true", "write", judge=failing("it could not be written")))
    outcome = outcome_of(as_host(node))
    (refusal,) = outcome.refusals
    assert (refusal.code, refusal.seen) == (
        "APPLY_RUNNING",
        "apply of bob since 12:03 works on it",
    )
    assert outcome.failures == []
    assert not held_of(as_host(node)).taken


def test_the_lock_of_a_dead_run_of_this_machine_is_taken_over_at_once() -> None:
    token = dead_token()
    node = Node((False, [f"@lock {token}", "@refused APPLY_RUNNING apply of us"]), WORKS)
    assert execute(node, Program("true", "write"))
    assert [token in text for text in node.programs] == [False, True]
    assert outcome_of(as_host(node)).refusals == []


def test_a_run_that_fails_gives_its_lock_back() -> None:
    node = Node(WORKS, WORKS, WORKS)
    execute(node, Program("true", "write"))
    assert not execute(node, Program("true", "verify", judge=lambda *_: False))
    assert len(node.programs) == 3
    assert "apply.lock" in node.programs[-1]
    assert "flock" not in node.programs[-1]


@pytest.mark.parametrize(
    "error", [SSHException("Channel closed."), OSError("away"), EOFError(), TimeoutError()]
)
def test_a_lost_connection_is_a_failure_of_that_node_and_said(error: Exception) -> None:
    node = Node(WORKS, error)
    execute(node, Program("true", "write"))
    assert not execute(node, Program("true", "switch chat"))
    (sentence,) = outcome_of(as_host(node)).failures
    assert sentence.startswith("the connection was lost at: switch chat")
    # What cannot be given back ends by itself.
    assert len(node.programs) == 2
