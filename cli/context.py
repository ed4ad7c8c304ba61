"""What every command shares: its target, its options, where it prints, how it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from pyinfra.api import Inventory
from pyinfra.api.host import Host
from rich.console import Console

from cli import ansible, inventory, report
from cli.bounds import UNLIMITED, Bounds, TookTooLong
from cli.events import Events
from cli.exits import Exit, worst
from cli.live import STEPS_ARE_LINES, Live, can_draw
from cli.reach import why_unreachable
from cli.retry import keep_failed
from cli.session import Session, session
from cli.sudo import NoPassword, passwords_of
from cli.summary import lasting, summary, went_wrong
from cli.wishes import as_options
from deploys.fleetdoors import hosts_of_doors
from deploys.node import DATA_KEY, wishes_of
from deploys.wheel_locks import with_own_locks
from facts.survey import survey_problem
from operations.becoming import NotRoot
from operations.outcomes import Outcome, outcome_of
from plans.deployed import NotDeployed
from plans.plan import NodePlan
from plans.secrets import Secret
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
    exclude: tuple[str, ...] = ()
    bounds: Bounds = UNLIMITED
    events: Events = field(default_factory=Events)
    ask_sudo_password: bool = False
    accept_new: bool = False
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
    def file(self) -> Path:
        """The inventory's file, where the target is one: also of one of Ansible's."""
        return Path(self.target.removeprefix(ansible.PREFIX))

    @property
    def is_demo(self) -> bool:
        """Whether the target is the demonstration inventory, whose refusals are what it shows."""
        return Path(self.target).resolve() == DEMO

    @cached_property
    def inventory(self) -> Inventory:
        """The target's nodes and their data: an inventory file is run once. Raises TargetError."""
        data = {DATA_KEY: self.data} if self.data is not None else None
        return inventory.load(self.target, data)

    @property
    def chosen(self) -> list[Host] | None:
        """The nodes that --limit and --exclude leave, or None for all. Raises TargetError."""
        return inventory.limited(self.inventory, self.limit, self.exclude)

    @cached_property
    def passwords(self) -> dict[str, Secret]:
        """The passwords of sudo by node, asked for or read once. Raises Stop where one is not had."""
        hosts = self.chosen if self.chosen is not None else list(self.inventory)
        # Their doors are told where a server behind them is stopped.
        hosts += [host for host in hosts_of_doors(self.inventory) if host not in hosts]
        try:
            return passwords_of(
                hosts,
                lambda line: self.err.print(line, markup=False, soft_wrap=True, style="yellow"),
                ask=self.ask_sudo_password,
            )
        except NoPassword as error:
            raise Stop(Exit.USAGE, *error.messages) from None

    @cached_property
    def live(self) -> Live | None:
        """What draws the nodes at work, or None where that cannot be or more is to be said."""
        if self.verbosity or not can_draw(self.err):
            return None
        live = Live()
        self.events.listeners.append(live.hear)
        return live

    @contextmanager
    def nodes(self, deploy_file: str, only: list[Host] | None = None) -> Iterator[Session]:
        """Connect to the target's nodes, or to some; say of each that could not be reached why."""
        with (
            self.live.shown() if self.live else nullcontext(),
            session(
                self.inventory,
                self.chosen if only is None else only,
                sudo=self.sudo,
                verbosity=self.verbosity,
                deploy_file=deploy_file,
                bounds=self.bounds,
                events=self.events,
                passwords=self.passwords,
                accept_new=self.accept_new,
            ) as found,
        ):
            for host in found.hosts:
                error = found.connect_error(host)
                if isinstance(error, TookTooLong):
                    self.failed(host.name, why_unreachable(host, error), "NODE_LIMIT")
                elif error is not None:
                    self.failed(host.name, why_unreachable(host, error), "UNREACHABLE")
            yield found

    def wishes(self) -> dict[str, Wishes]:
        """Return what the operator wants, by node; all of it validated before any is touched.

        Raises Stop with every message where something is wrong.
        """
        limited = self.chosen
        found: dict[str, Wishes] = {}
        messages: list[str] = []
        for host in limited if limited is not None else list(self.inventory):
            try:
                wishes = wishes_of(host)
                wishes = wishes and with_own_locks(wishes, host.name, str(self.file))
            except WishesError as error:
                told = error.messages
                box = self.data is not None
                messages += [as_options(one, host.name) for one in told] if box else told
                continue
            if wishes is None:
                hint = (
                    "name the model, such as --model Qwen/Qwen3-8B"
                    if not self.file.exists()
                    else f"write its services under the key {DATA_KEY!r}, as in inventories/example.py"
                )
                messages.append(f"{host.name}: nothing says what it shall serve: {hint}")
            else:
                found[host.name] = wishes
        if messages:
            raise Stop(Exit.USAGE, *dict.fromkeys(messages))
        return found

    def failed(self, node: str, sentence: str, code: str = "FAILED") -> None:
        """Say that a node failed, and keep it for the exit code and the JSON document."""
        self.exits.append(Exit.FAILED)
        self.documents.append({"node": node, "error": {"code": code, "text": sentence}})
        self.err.print(f"[bold]{node}[/bold]  [red]{code}[/red]: ", end="", soft_wrap=True)
        self.err.print(sentence, markup=False, soft_wrap=True)

    def planned(self, plan: NodePlan) -> None:
        """Tell the event that a node's plan was made."""
        self.events.tell(
            "planned",
            node=plan.node,
            decision=plan.decision,
            refusals=[one.code for one in plan.refusals],
            changes=len(plan.changes),
        )

    def gather(self, results: dict[Host, T | Exception | None]) -> dict[Host, T]:
        """Return the results of the nodes that went well; say of each other one why not."""
        good: dict[Host, T] = {}
        for host, result in results.items():
            if isinstance(result, Exception):
                if isinstance(result, NotDeployed):
                    self.failed(host.name, str(result), "NOT_DEPLOYED")
                elif isinstance(result, NotRoot):
                    self.failed(host.name, str(result), result.code)
                elif isinstance(result, TookTooLong):
                    self.failed(host.name, str(result), "NODE_LIMIT")
                else:
                    self.failed(host.name, f"{type(result).__name__}: {result}")
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
        if self.live is not None and self.live.board.nodes > STEPS_ARE_LINES:
            return
        self.err.print(f"[dim]{host.name}  {name}[/dim]", soft_wrap=True)

    def finish(self, **document: Any) -> NoReturn:
        """Print the JSON document, if asked for, and end with the run's exit code."""
        # Nodes that failed were met first; all that is told has the inventory's order.
        place = {host.name: number for number, host in enumerate(self.inventory)}
        self.documents.sort(key=lambda one: place.get(one["node"], len(place)))
        if self.as_json:
            click.echo(json.dumps({"nodes": self.documents, **document}, ensure_ascii=False))
        self._keep_failed()
        for one in self.documents:
            self.events.tell("node-ended", **_end_of(one))
        code = worst(self.exits)
        if self.is_demo and code in (Exit.REFUSED, Exit.PENDING):
            code = Exit.OK
        self.events.tell("run-ended", exit_code=int(code), seconds=self.events.seconds)
        if (line := summary(self.documents)) is not None:
            self.out.print(line, markup=False, soft_wrap=True)
        sys.exit(int(code))

    def _keep_failed(self) -> None:
        """Keep which nodes are not where they shall be, and say how to run over them alone."""
        one_of_many = self.file.exists() and len(list(self.inventory)) > 1
        if not one_of_many or self.is_demo:
            return
        kept, said = lasting(self.documents)
        path = keep_failed(str(self.file), kept)
        if path is not None:
            self.err.print(
                f"{said}; these alone: --limit @{path}", markup=False, soft_wrap=True, style="red"
            )


def _failed(document: dict[str, Any]) -> bool:
    """Say whether a node's document tells of a failure, a refusal or a service that is not well."""
    wrong = went_wrong(document)
    # One that was not begun with has nothing wrong, but for what a limit of failures says of it.
    return wrong is not None and (wrong != "not begun" or bool(document.get("failures")))


def _end_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return how a node ended, as its event carries it."""
    error = document.get("error")
    refused = [one["code"] for one in document.get("refusals", ())]
    verified = document.get("verified", {})
    sentences = [error["text"]] if error else []
    sentences += document.get("failures", ())
    sentences += [one["result"] for one in verified.values() if not one["ok"]]
    for one in document.get("services", ()):
        if not one.get("ok", True):
            sentences.append(f"{one['name']}: {one['state']}")
    return {
        "node": document["node"],
        "ok": not _failed(document),
        "codes": list(dict.fromkeys([*([error["code"]] if error else []), *refused])),
        "failures": sentences,
    }


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
    } | ({} if outcome.begun else {"begun": False})


Command = Callable[..., None]
