"""The command that makes an inventory of what serves SGLang by hand."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from pyinfra.api.host import Host
from rich.console import Console

from cli import report
from cli.context import Run, Stop
from cli.exits import Exit
from cli.keep import write_private
from cli.locking import lock_of
from cli.options import COMMON, with_run
from cli.planning import recorded
from cli.secrets import secrets_of
from deploys.adopt import gathered_from
from deploys.node import Options, plan_of, survey_of
from facts.records import Survey
from facts.survey import SurveyError
from plans.adopt.from_file import read_text
from plans.adopt.gathered import NotGathered, servers
from plans.adopt.node import Adopted, inventory_text
from plans.adopt.node import adopt as adopted_of
from plans.adopt.records import NotReadable
from plans.adopt.stopped import as_stopped
from plans.plan import NodePlan
from plans.text import file_name
from plans.wishes import Wishes

_REACH = (
    "ssh_hostname",
    "ssh_port",
    "ssh_user",
    "ssh_key",
    "ssh_config_file",
    "ssh_known_hosts_file",
    "_sudo",
)
"""Keys of a host's data that say how it is reached, and are written into the inventory."""


@dataclass(frozen=True)
class _Told:
    """What is told of a node."""

    adopted: Adopted
    plan: NodePlan | None = None
    held: tuple[str, ...] = ()  # by what serves now, and free in the plan
    problems: tuple[str, ...] = ()  # what could not be read


@click.command()
@COMMON
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Read this instead of the node: a docker run, a script, a compose file, a unit, docker inspect.",
)
@click.option(
    "--survey",
    "surveys",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --from: plan from a recorded survey of the node (survey --record).",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the inventory here instead of printing it.",
)
@with_run
def adopt(run: Run, source: Path | None, surveys: Path | None, out: Path | None) -> None:
    """Make the inventory of what serves SGLang on a node by hand, and plan from there; change nothing."""
    if surveys is not None and source is None:
        raise click.UsageError("--survey goes with --from: a node itself is surveyed now")
    if out is not None and out.exists():
        raise Stop(Exit.USAGE, f"{out} is there already: name another file")
    found = [_from_file(run, source, surveys)] if source is not None else _from_nodes(run)
    if found:
        text = inventory_text(
            [one.adopted for one in found], {host.name: _reach(host) for host in run.inventory}
        )
        if out is not None:
            write_private(out, text)
            run.err.print(f"wrote {out}", markup=False, soft_wrap=True)
        else:
            run.out.print(text, markup=False, soft_wrap=True)
    for one in found:
        _show(run.out, one)
        document = one.adopted.as_dict()
        if one.plan is not None:
            document["planned_without"] = list(one.held)
            document["plan"] = one.plan.as_dict()
            document["refusals"] = document["plan"]["refusals"]
            run.planned(one.plan)
        run.documents.append(document)
        if one.adopted.problems or document.get("refusals"):
            run.exits.append(Exit.REFUSED)
    if found:
        path = str(out) if out else "inventories/site.py"
        first = "" if out else f"keep the inventory above as {path}, then: "
        if any(one.adopted.problems for one in found):
            first = (
                f"complete {path}" if out else f"keep the inventory above as {path}, complete it"
            )
            first += " with what is to be written by hand; only then: "
        run.out.print(
            f"{first}sglang-node lock {path}; stop what serves now; sglang-node apply {path}",
            markup=False,
            soft_wrap=True,
        )
    run.finish()


def _planned(run: Run, one: Adopted, wishes: Wishes, survey: Survey, now: float | None) -> _Told:
    without, held = as_stopped(survey, one.entries)
    secrets = secrets_of(run, {one.node: wishes}, needed=False)
    options = Options(lock_of(run)[0], secrets=secrets)
    return _Told(one, plan_of(without, wishes, options, now=now), held)


def _from_file(run: Run, source: Path, surveys: Path | None) -> _Told:
    hosts = run.chosen if run.chosen is not None else list(run.inventory)
    if len(hosts) != 1:
        raise Stop(Exit.USAGE, "--from is of one node: name it, such as: adopt gpu-1 --from FILE")
    node = hosts[0].name
    try:
        there = read_text(source.read_text(encoding="utf-8", errors="replace"), source.name)
    except NotReadable as error:
        raise Stop(Exit.USAGE, f"{source}: {error}") from None
    one = adopted_of(node, there)
    if surveys is None or one.wishes is None:
        return _Told(one)
    try:
        return _planned(run, one, one.wishes, recorded(surveys, node), None)
    except SurveyError as error:
        raise Stop(Exit.USAGE, f"{file_name(node)}.survey: {error}") from None


def _from_nodes(run: Run) -> list[_Told]:
    def read(host: Host) -> _Told | None:
        gathered = gathered_from(host)
        one = adopted_of(host.name, servers(gathered))
        wishes = one.wishes if one.entries else None
        if wishes is None:
            return _Told(one, problems=tuple(gathered.problems))
        survey = survey_of(host, wishes)
        if survey is None:
            return None
        told = _planned(run, one, wishes, survey, time.time())
        return replace(told, problems=tuple(gathered.problems))

    found: list[_Told] = []
    with run.nodes(__file__) as nodes:
        results = nodes.prepare(read)
        for host, result in results.items():
            if isinstance(result, NotGathered):
                run.failed(host.name, str(result), "SURVEY_FAILED")
        read_ones = {h: r for h, r in results.items() if not isinstance(r, NotGathered)}
        for host, told in run.gather(read_ones).items():
            if told.adopted.entries:
                found.append(told)
                for problem in told.problems:
                    said = f"{host.name}  not read: {problem}"
                    run.err.print(said, markup=False, soft_wrap=True, style="yellow")
            else:
                told_of = f"; not read: {'; '.join(told.problems)}" if told.problems else ""
                said = f"nothing that runs here serves SGLang by hand{told_of}"
                run.failed(host.name, said, "NOTHING_TO_ADOPT")
    return found


def _reach(host: Host) -> dict[str, Any]:
    found = {key: host.data.get(key) for key in _REACH}
    return {key: value for key, value in found.items() if value is not None}


def _show(out: Console, told: _Told) -> None:
    one, plan = told.adopted, told.plan
    for entry in one.entries:
        _head(out, f"{one.node}  {entry.found.where} is the service {entry.service['name']}")
        for text in entry.secrets:
            report.marked(out, "!", text, "yellow")
        for text in entry.differs:
            report.marked(out, "·", text, "dim")
        for note in entry.lost:
            report.marked(out, "✗", f"not carried over: {note}", "yellow")
    for note in one.lost:
        report.marked(out, "✗", f"not carried over: {note}", "yellow")
    for problem in one.problems:
        report.marked(out, "✗", f"write by hand: {problem}", "red")
    out.print()
    if plan is not None:
        if told.held:
            _head(out, f"{one.node}  planned as it is once that is stopped: {', '.join(told.held)}")
        report.plan(out, plan, diff=False)
    for entry in one.entries:
        if entry.found.stop:
            _head(out, f"{one.node}  before apply, stop {entry.found.where} by hand:")
            for command in entry.found.stop:
                report.marked(out, "$", command, "")
            report.marked(out, "·", entry.found.ends, "dim")
    out.print()


def _head(out: Console, text: str) -> None:
    out.print(text, markup=False, soft_wrap=True)
