"""The commands, each readable in a minute."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click
from pyinfra.api.host import Host

from cli import report
from cli.context import NotDeployed, Run, Stop, outcome_document
from cli.exits import Exit
from cli.keep import write_private
from cli.locking import incomplete, lock_of, made_lock
from cli.options import COMMON, ONE_BOX, with_run
from cli.secrets import hub_token_of, secrets_of
from deploys.node import (
    Options,
    apply_plan,
    not_deployed,
    plan_node,
    remove_from,
    survey_of,
    verify_node,
)
from facts.records import Survey
from facts.survey import SurveyError, raw_survey, read_recorded
from operations import service
from plans import text
from plans.codes import UnknownCode
from plans.codes import explain as explain_code
from plans.deployed import all_deployed
from plans.make import make_plan
from plans.plan import NodePlan
from plans.scripts import KEPT_MARK, Take
from plans.states import ServiceLine, service_lines
from plans.version import VERSION


@click.command()
@COMMON
@click.option(
    "--record",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the raw surveys here, one file per node.",
)
@with_run
def survey(run: Run, record: Path | None) -> None:
    """Read what each node is, in one round trip; change nothing."""
    with run.nodes(__file__) as nodes:
        surveys = nodes.prepare(lambda host: survey_of(host, None))
        # Those too that could not be read: they are what a bug report needs.
        if record is not None:
            record.mkdir(parents=True, exist_ok=True)
            for host in surveys:
                file = record / f"{text.file_name(host.name)}.survey"
                write_private(file, "\n".join(raw_survey(host)) + "\n")
                run.err.print(f"recorded {file}", markup=False, soft_wrap=True)
        for host, found in run.gather(surveys).items():
            run.documents.append({"node": host.name, "survey": dataclasses.asdict(found)})
            run.out.print(text.one_line(found), markup=False, soft_wrap=True)
            for line in text.survey_lines(found):
                run.out.print(f"  {line}", markup=False, soft_wrap=True)
    run.finish()


@click.command()
@COMMON
@ONE_BOX
@click.option("--refresh", is_flag=True, help="Ask anew for what is locked already.")
@with_run
def lock(run: Run, refresh: bool) -> None:
    """Ask registry and hub once: tags to digests, models to commits; write sglang.lock."""
    wishes = run.wishes()
    existing, _ = lock_of(run)
    token = hub_token_of(run, secrets_of(run, wishes, needed=False))
    made = made_lock(run, wishes.values(), existing, refresh=refresh, hub_token=token)
    for key, image in made.images.items():
        there = ", ".join(image.architectures())
        run.out.print(f"{key}  {image.index_digest}  {there}", markup=False, soft_wrap=True)
    for key, model in made.models.items():
        size = text.size(model.total_bytes)
        run.out.print(
            f"{key}  {model.commit}  {len(model.files)} files, {size}", markup=False, soft_wrap=True
        )
    for one in made.unresolved:
        run.err.print(
            f"unresolved: {one.what}: {one.why}", markup=False, soft_wrap=True, style="red"
        )
        run.exits.append(Exit.FAILED)
    run.finish(lock=made.to_json())


@click.command()
@COMMON
@ONE_BOX
@click.option("--diff", is_flag=True, help="Show how each text would change.")
@click.option("--check", is_flag=True, help="End with 4 where changes are pending.")
@click.option(
    "--survey",
    "surveys",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Plan from recorded surveys (survey --record), with no node at all.",
)
@click.option(
    "--assume",
    multiple=True,
    metavar="driver=VERSION",
    help="What if: plan as though the driver were this one.",
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Keep the plans' JSON here too."
)
@click.option(
    "--discard-edits", is_flag=True, help="Plan to replace managed files that were edited by hand."
)
@with_run
def plan(
    run: Run, diff: bool, check: bool, surveys: Path | None, assume: tuple[str, ...],
    out: Path | None, discard_edits: bool,
) -> None:  # fmt: skip
    """Show what apply would do to each node, and why; change nothing."""
    assumed = _assumed(assume)
    wishes = run.wishes()
    existing, path = lock_of(run)
    secrets = secrets_of(run, wishes, needed=False)

    def planned(found: Survey, name: str) -> NodePlan:
        return make_plan(
            assumed(found),
            wishes[name],
            existing,
            VERSION,
            discard_edits=discard_edits,
            secrets=secrets[name],
        )

    plans: list[NodePlan] = []
    if surveys is not None:
        for name in wishes:
            try:
                found = _recorded(surveys, name)
            except SurveyError as error:
                run.failed(name, str(error), "SURVEY_FAILED")
                continue
            plans.append(planned(found, name))
    else:
        with run.nodes(__file__) as nodes:

            def make(host: Host) -> NodePlan | None:
                found = survey_of(host, wishes[host.name])
                return None if found is None else planned(found, host.name)

            plans += run.gather(nodes.prepare(make)).values()
    for one_plan in plans:
        report.plan(run.out, one_plan, diff=diff)
        run.documents.append(one_plan.as_dict())
        if one_plan.refusals:
            run.exits.append(Exit.REFUSED)
        elif check and not one_plan.converged:
            run.exits.append(Exit.PENDING)
    if any(one_plan.unresolved for one_plan in plans):
        hint = (
            "apply makes the lock first" if existing is None else "the lock does not have all of it"
        )
        run.err.print(
            f"{path}: {hint}; to make it now: sglang-node lock {run.target}",
            markup=False,
            soft_wrap=True,
        )
    if out is not None:
        write_private(
            out, json.dumps({"nodes": run.documents}, ensure_ascii=False, indent=1) + "\n"
        )
    run.finish()


def _assumed(words: tuple[str, ...]) -> Any:
    changes: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if key != "driver" or not equals or not value[:1].isdigit():
            raise click.UsageError(
                f"--assume {word!r}: write driver=VERSION, such as driver=580.126.09"
            )
        changes["driver_version"] = value

    def change(found: Survey) -> Survey:
        if not changes:
            return found
        # Module and libraries of a driver are of one version.
        driver = changes["driver_version"]
        nvidia = dataclasses.replace(found.nvidia, driver_version=driver, module_version=driver)
        return dataclasses.replace(found, nvidia=nvidia)

    return change


def _recorded(folder: Path, node: str) -> Survey:
    file = folder / f"{text.file_name(node)}.survey"
    if not file.is_file():
        raise Stop(
            Exit.USAGE,
            f"{node}: {folder} has no {file.name} (made by: sglang-node survey --record)",
        )
    return dataclasses.replace(read_recorded(file), node=node)


@click.command()
@COMMON
@ONE_BOX
@click.option("--diff", is_flag=True, help="Show how each text changes.")
@click.option(
    "--discard-edits", is_flag=True, help="Replace managed files that were edited by hand."
)
@with_run
def apply(run: Run, diff: bool, discard_edits: bool) -> None:
    """Make each node serve what it shall, then verify by a real generation."""
    wishes = run.wishes()
    secrets = secrets_of(run, wishes)
    existing, _ = lock_of(run)
    if incomplete(existing, wishes.values()):
        run.err.print(
            "the lock does not have all that is needed: asking registry and hub", style="dim"
        )
        token = hub_token_of(run, secrets)
        existing = made_lock(run, wishes.values(), existing, refresh=False, hub_token=token)
    options = Options(existing, discard_edits, secrets)
    with run.nodes(__file__) as nodes:
        plans = run.gather(nodes.prepare(lambda host: plan_node(host, wishes[host.name], options)))
        going = {}
        for host, one in plans.items():
            report.plan(run.out, one, diff=diff)
            if one.refusals or one.unresolved:
                run.exits.append(Exit.REFUSED)
            elif one.changes:
                going[host] = one
        run.gather(nodes.prepare(lambda host: apply_plan(going[host]) if host in going else None))
        nodes.execute(run.step)
        for host, one in plans.items():
            document = one.as_dict()
            if host in going:
                outcome = run.judged(host)
                document |= outcome_document(host.name, outcome)
                document["refusals"] = document["refusals"] or one.as_dict()["refusals"]
            run.documents.append(document)
    run.finish()


@click.command()
@COMMON
@click.option("--service", "only", multiple=True, help="Only this service; may be repeated.")
@with_run
def verify(run: Run, only: tuple[str, ...]) -> None:
    """Prove that each service answers: one ordinary generation whose text is read."""
    _act(run, lambda host: verify_node(host, only))


@click.command()
@COMMON
@click.option("--service", "only", multiple=True, help="Only this service; may be repeated.")
@with_run
def restart(run: Run, only: tuple[str, ...]) -> None:
    """Restart services: requests in flight are finished first; then verify."""

    def register(host: Host) -> None:
        found = survey_of(host, None)
        if found is None:
            return
        for name, one in _chosen(found, only).items():
            service.restarted(name_of_service=name, release=one.release, name=f"Restart {name}")
            service.verified(
                service=one.service, release=one.release, number=one.number, name=f"Verify {name}"
            )

    _act(run, register)


@click.command()
@COMMON
@click.option("--service", "only", multiple=True, help="Only this service; may be repeated.")
@with_run
def stop(run: Run, only: tuple[str, ...]) -> None:
    """Stop services: requests in flight are finished first. They start again with the node."""

    def register(host: Host) -> None:
        found = survey_of(host, None)
        if found is None:
            return
        for name, one in _chosen(found, only).items():
            service.stopped(name_of_service=name, release=one.release, name=f"Stop {name}")

    _act(run, register)


def _chosen(found: Survey, only: tuple[str, ...]) -> Any:
    there = all_deployed(found)
    missing = [name for name in only if name not in there]
    if missing or not there:
        raise NotDeployed(not_deployed(missing, there))
    return {name: one for name, one in there.items() if not only or name in only}


def _act(run: Run, register: Any) -> None:
    with run.nodes(__file__) as nodes:
        run.gather(nodes.prepare(register))
        nodes.execute(run.step)
        for host in nodes.hosts:
            if nodes.connect_error(host) is None and not any(
                d["node"] == host.name for d in run.documents
            ):
                run.documents.append(outcome_document(host.name, run.judged(host)))
    run.finish()


@click.command()
@COMMON
@with_run
def status(run: Run) -> None:
    """One line per service: release, runtime, state, since when, drift."""
    rows: list[ServiceLine] = []
    with run.nodes(__file__) as nodes:
        for host, found in run.gather(nodes.prepare(lambda host: survey_of(host, None))).items():
            lines = service_lines(found)
            rows += lines
            run.documents.append(
                {"node": host.name, "services": [line.as_dict() for line in lines]}
            )
            if not lines:
                run.out.print(f"{host.name}  nothing deployed", markup=False)
            if any(line.bad for line in lines):
                run.exits.append(Exit.FAILED)
    if rows:
        report.table(run.out, [row.cells for row in rows], ServiceLine.HEADER)
    run.finish()


@click.command()
@COMMON
@click.option("--service", "only", multiple=True, help="Only this service; may be repeated.")
@click.option("--weights", is_flag=True, help="Take the weights away too.")
@click.option("--records", is_flag=True, help="Take the records of deployments away too.")
@click.option("--drop-ins", is_flag=True, help="Take your own drop-ins away too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_run
def remove(
    run: Run, only: tuple[str, ...], weights: bool, records: bool, drop_ins: bool, yes: bool
) -> None:
    """Take away what the toolkit put there; keep weights, drop-ins and records unless asked."""
    what = ", ".join(only) if only else "every service"
    if not yes and not click.confirm(f"Remove {what} of {run.target}?", err=True):
        raise Stop(Exit.OK, "nothing was removed")
    take = Take(weights, records, drop_ins)
    with run.nodes(__file__) as nodes:
        run.gather(nodes.prepare(lambda host: remove_from(host, only, take)))
        nodes.execute(run.step)
        for host in nodes.hosts:
            if nodes.connect_error(host) is not None:
                continue
            outcome = run.judged(host)
            kept = [
                line.removeprefix(KEPT_MARK)
                for line in outcome.said.get("", ())
                if line.startswith(KEPT_MARK)
            ]
            run.documents.append({**outcome_document(host.name, outcome), "kept": kept})
            if not outcome.failures:
                told = "; kept: " + ", ".join(kept) if kept else ""
                run.out.print(f"{host.name}  removed{told}", markup=False, soft_wrap=True)
    run.finish()


@click.command()
@click.argument("code")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def explain(code: str, as_json: bool) -> None:
    """Say what a refusal or finding means: what was seen, why it matters, ways out, sources."""

    try:
        entry = explain_code(code)
    except UnknownCode as error:
        raise Stop(Exit.USAGE, str(error)) from None
    if as_json:
        click.echo(json.dumps(entry.model_dump(mode="json"), ensure_ascii=False))
        return
    click.echo(
        f"{entry.code}: {entry.title}\n\nWhat was seen: {entry.seen}\n\nWhy it matters: {entry.why}\n"
    )
    click.echo("Ways out:")
    for way in entry.ways_out:
        click.echo(f"  - {way}")
    click.echo(f"\nHow sure: {entry.how_sure}")
    for source in entry.sources:
        click.echo(f"  {source}")


ALL = (survey, lock, plan, apply, verify, status, restart, stop, explain, remove)
