"""The commands, each readable in a minute."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click
from pyinfra.api.host import Host

from cli import report
from cli.context import Run, Stop, outcome_document
from cli.exits import Exit
from cli.keep import write_private
from cli.locking import lock_of, made_lock
from cli.options import ALLOW_RELOAD, COMMON, ONE_BOX, with_run
from cli.planning import apply, plan
from cli.secrets import hub_token_of, secrets_of
from deploys.node import (
    remove_from,
    survey_of,
    verify_node,
)
from facts.survey import raw_survey
from operations import apply as operations_of_apply
from operations import service
from plans import text
from plans.codes import UnknownCode
from plans.codes import explain as explain_code
from plans.deployed import chosen
from plans.scripts import KEPT_MARK, Take
from plans.states import ServiceLine, service_lines


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
        for name, one in chosen(found, only).items():
            service.restarted(name_of_service=name, release=one.release, name=f"Restart {name}")
            service.verified(
                service=one.service, release=one.release, number=one.number, name=f"Verify {name}"
            )
        operations_of_apply.released(name="Give the apply lock back")

    _act(run, register)


@click.command()
@COMMON
@click.option("--service", "only", multiple=True, help="Only this service; may be repeated.")
@with_run
def stop(run: Run, only: tuple[str, ...]) -> None:
    """Stop services: requests in flight are finished first. They start again with the node, and with Docker."""

    def register(host: Host) -> None:
        found = survey_of(host, None)
        if found is None:
            return
        for name, one in chosen(found, only).items():
            service.stopped(name_of_service=name, release=one.release, name=f"Stop {name}")
        operations_of_apply.released(name="Give the apply lock back")

    _act(run, register)


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
@ALLOW_RELOAD
@with_run
def remove(
    run: Run, only: tuple[str, ...], weights: bool, records: bool, drop_ins: bool, yes: bool,
    allow_daemon_reload: bool,
) -> None:  # fmt: skip
    """Take away what the toolkit put there; keep weights, drop-ins and records unless asked."""
    what = ", ".join(only) if only else "every service"
    where = f"{', '.join(run.limit)} of {run.target}" if run.limit else run.target
    if not yes:
        if not sys.stdin.isatty():
            raise Stop(Exit.USAGE, f"nobody is there to be asked: to remove {what}, add --yes")
        if not click.confirm(f"Remove {what} of {where}?", err=True):
            raise Stop(Exit.OK, "nothing was removed")
    take = Take(weights, records, drop_ins)
    with run.nodes(__file__) as nodes:
        allow = allow_daemon_reload
        run.gather(nodes.prepare(lambda h: remove_from(h, only, take, allow_daemon_reload=allow)))
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
            if not outcome.failures and not outcome.refusals:
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
