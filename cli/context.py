"""What every command shares: its target, its options, where it prints, how it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import click
from pyinfra.api import Inventory
from pyinfra.api.host import Host
from rich.console import Console

from cli import inventory, report
from cli.exits import Exit, worst
from cli.reach import why_unreachable
from cli.session import Session, session
from deploys.node import DATA_KEY, wishes_of
from facts.survey import survey_problem
from operations.outcomes import Outcome, outcome_of
from plans.deployed import NotDeployed
from plans.wishes import Wishes, WishesError

T = TypeVar("T")

DEMO = Path(__file__).resolve().parents[1] / "inventories" / "demo.py"
"""The demonstration inventory that comes with the toolkit."""


class Stop(Exception):
    """Ends the command with an exit code; messages say why."""

    def __init__(self, code: Exit, *messages: str) -> None:
        super().__init__("; ".join(messages))
        self.code = code
        self.messages = messages


@dataclass
class Run:
    """One call of a command."""

    target: str
    as_json: bool
    limit: tuple[str, ...]
    verbosity: int
    no_color: bool
    sudo: bool = False
    data: dict[str, Any] | None = None  # of one box, given as options
    exits: list[Exit] = field(default_factory=list)
    documents: list[dict[str, Any]] = field(default_factory=list)  # one per node, for --json

    @property
    def out(self) -> Console:
        """Where people read the result: stdout, or stderr where stdout is JSON's."""
        return report.console(stderr=self.as_json, no_color=self.no_color)

    @property
    def err(self) -> Console:
        """Where progress and errors go."""
        return report.console(stderr=True, no_color=self.no_color)

    @property
    def is_demo(self) -> bool:
        """Whether the target is the demonstration inventory, whose refusals are what it shows."""
        return Path(self.target).resolve() == DEMO

    @cached_property
    def inventory(self) -> Inventory:
        """The target's nodes and their data: an inventory file is run once. Raises TargetError."""
        data = {DATA_KEY: self.data} if self.data is not None else None
        return inventory.load(self.target, data)

    @contextmanager
    def nodes(self, deploy_file: str) -> Iterator[Session]:
        """Connect to the target's nodes; say of each that could not be reached why."""
        hosts = inventory.limited(self.inventory, self.limit)
        with session(
            self.inventory, hosts, sudo=self.sudo, verbosity=self.verbosity, deploy_file=deploy_file
        ) as found:
            for host in found.hosts:
                error = found.connect_error(host)
                if error is not None:
                    self.failed(host.name, why_unreachable(host, error), "UNREACHABLE")
            yield found

    def wishes(self) -> dict[str, Wishes]:
        """Return what the operator wants, by node; all of it validated before any is touched.

        Raises Stop with every message where something is wrong.
        """
        limited = inventory.limited(self.inventory, self.limit)
        found: dict[str, Wishes] = {}
        messages: list[str] = []
        for host in limited if limited is not None else list(self.inventory):
            try:
                wishes = wishes_of(host)
            except WishesError as error:
                messages += error.messages
                continue
            if wishes is None:
                hint = (
                    "name the model, such as --model Qwen/Qwen3-8B"
                    if not Path(self.target).is_file()
                    else f"write its services under the key {DATA_KEY!r}, as in inventories/example.py"
                )
                messages.append(f"{host.name}: nothing says what it shall serve: {hint}")
            else:
                found[host.name] = wishes
        if messages:
            raise Stop(Exit.USAGE, *messages)
        return found

    def failed(self, node: str, sentence: str, code: str = "FAILED") -> None:
        """Say that a node failed, and keep it for the exit code and the JSON document."""
        self.exits.append(Exit.FAILED)
        self.documents.append({"node": node, "error": {"code": code, "text": sentence}})
        self.err.print(f"[bold]{node}[/bold]  [red]{code}[/red]: ", end="", soft_wrap=True)
        self.err.print(sentence, markup=False, soft_wrap=True)

    def gather(self, results: dict[Host, T | Exception | None]) -> dict[Host, T]:
        """Return the results of the nodes that went well; say of each other one why not."""
        good: dict[Host, T] = {}
        for host, result in results.items():
            if isinstance(result, Exception):
                own = isinstance(result, NotDeployed)
                kind = "" if own else f"{type(result).__name__}: "
                self.failed(host.name, f"{kind}{result}", "NOT_DEPLOYED" if own else "FAILED")
            elif result is None:
                problem = survey_problem(host)
                if problem is not None:
                    self.failed(host.name, problem, "SURVEY_FAILED")
            else:
                good[host] = result
        return good

    def judged(self, host: Host) -> Outcome:
        """Say what operations found on a node; return it, its exit codes kept."""
        outcome = outcome_of(host)
        report.outcome(self.out, host.name, outcome)
        for service, verdict in outcome.verdicts.items():
            report.verdict(self.out, host.name, service, verdict)
            if not verdict.ok:
                self.exits.append(Exit.UNVERIFIED)
        if outcome.refusals:
            self.exits.append(Exit.REFUSED)
        if outcome.failures:
            self.exits.append(Exit.FAILED)
        return outcome

    def step(self, host: Host, name: str) -> None:
        """Show that an operation begins on a node."""
        self.err.print(f"[dim]{host.name}  {name}[/dim]", soft_wrap=True)

    def finish(self, **document: Any) -> None:
        """Print the JSON document, if asked for, and end with the run's exit code."""
        if self.as_json:
            # Nodes that failed were met first; the document has the inventory's order.
            place = {host.name: number for number, host in enumerate(self.inventory)}
            nodes = sorted(self.documents, key=lambda one: place.get(one["node"], len(place)))
            click.echo(json.dumps({"nodes": nodes, **document}, ensure_ascii=False))
        code = worst(self.exits)
        if self.is_demo and code in (Exit.REFUSED, Exit.PENDING):
            code = Exit.OK
        sys.exit(int(code))


def outcome_document(node: str, outcome: Outcome) -> dict[str, Any]:
    """Return what became of a node as it stands in JSON documents."""
    return {
        "node": node,
        "refusals": [refusal.as_dict() for refusal in outcome.refusals],
        "failures": list(outcome.failures),
        "verified": {
            service: {
                "ok": verdict.ok,
                "result": verdict.sentence,
                "generation_milliseconds": verdict.milliseconds,
                "first_answer_seconds": verdict.first_answer_seconds,
                "server_version": verdict.version,
                "findings": [finding.entry.id for finding in verdict.findings],
            }
            for service, verdict in outcome.verdicts.items()
        },
    }


Command = Callable[..., None]
