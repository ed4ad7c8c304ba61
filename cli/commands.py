"""The commands, each readable in a minute."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any, NoReturn

import click
from pyinfra.api.host import Host

from cli import report
from cli.asking import ask
from cli.context import Run, Stop, outcome_document
from cli.exits import Exit
from cli.force import stop_now
from cli.keep import write_private, write_whole
from cli.locking import lock_of, made_lock
from cli.maintenance import maintenance_document
from cli.options import ALLOW_RELOAD, COMMON, ONE_BOX, with_run
from cli.ranks import refuse_alone
from cli.rolling import batches_of, read_batch, roll
from cli.secrets import hub_token_of, secrets_of
from cli.summary import went_wrong
from deploys import rotation
from deploys.maintenance import take_back
from deploys.node import (
    hooks_of,
    remove_from,
    right_wishes_of,
    survey_of,
    verify_node,
)
from facts.survey import raw_survey
from operations import apply as operations_of_apply
from operations import service
from operations.outcomes import outcome_of
from plans import text
from plans.codes import UnknownCode
from plans.codes import explain as explain_code
from plans.deployed import all_deployed, chosen
from plans.doorline import door_line
from plans.metrics import metrics
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
        # With what is wanted of it, so that a record has all that a plan asks.
        surveys = nodes.prepare(lambda host: survey_of(host, right_wishes_of(host)))
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
@click.option("--to", metavar="VERSION", help="Also what upgrade --to VERSION needs.")
@with_run
def lock(run: Run, refresh: bool, to: str | None) -> None:
    """Ask registry, hub and FlashInfer's index once: digests, commits, hashes; write sglang.lock."""
    # What asks them takes long to import, and no other command asks them unless it must.
    from cli.upgrade import upgraded
    from locks.kernels import kernels_words

    wishes = run.wishes()
    existing, _ = lock_of(run)
    token = hub_token_of(run, secrets_of(run, wishes, needed=False))
    several = [*wishes.values(), *(upgraded(wishes, to, ()).values() if to else ())]
    made = made_lock(run, several, existing, refresh=refresh, hub_token=token)
    for key, image in made.images.items():
        there = ", ".join(image.architectures())
        run.out.print(f"{key}  {image.index_digest}  {there}", markup=False, soft_wrap=True)
    for key, model in made.models.items():
        size = text.size(model.total_bytes)
        run.out.print(
            f"{key}  {model.commit}  {len(model.files)} files, {size}", markup=False, soft_wrap=True
        )
    for kernels in made.kernels.values():
        run.out.print(kernels_words(kernels), markup=False, soft_wrap=True)
    for one in made.unresolved:
        run.err.print(
            f"unresolved: {one.what}: {one.why}", markup=False, soft_wrap=True, style="red"
        )
        # A node does without precompiled kernels, and its plan says so.
        if one.kind != "kernels":
            run.exits.append(Exit.FAILED)
    run.finish(lock=made.to_json())


@click.command()
@COMMON
@click.option("--service", "only", multiple=True, help="Only this service; may be repeated.")
@click.option(
    "--hard",
    is_flag=True,
    help="As an upgrade does: eight at a time, a stream, a client that goes away, a JSON schema.",
)
@with_run
def verify(run: Run, only: tuple[str, ...], hard: bool) -> None:
    """Prove that each service answers: one ordinary generation whose text is read."""

    def register(host: Host) -> None:
        verify_node(host, only, hard=hard)
        take_back(host, only)

    _act(run, register)


@click.command()
@COMMON
@click.option("--service", "only", multiple=True, help="Only this service; may be repeated.")
@click.option(
    "--batch",
    metavar="N|N%",
    callback=read_batch,
    help="Nodes that are restarted at the same time; a batch that fails stops the run [all].",
)
@with_run
def restart(run: Run, only: tuple[str, ...], batch: str | None) -> None:
    """Restart services: requests in flight are finished first; then verify."""

    def register(host: Host) -> None:
        found = survey_of(host, None)
        if found is None:
            return
        hooks = hooks_of(host)
        for name, one in chosen(found, only).items():
            rotation.leave(hooks, one.service, one.release)
            service.restarted(name_of_service=name, release=one.release, name=f"Restart {name}")
            service.verified(
                service=one.service, release=one.release, number=one.number, name=f"Verify {name}"
            )
            rotation.enter(hooks, one.service, one.release)
        operations_of_apply.released(name="Give the apply lock back")

    if batch is None:
        _act(run, register, stops=only)
    with run.nodes(__file__) as nodes:
        # Before the first batch: one whose ranks are not all here stops none of the others.
        refuse_alone(run, nodes, only)
        there = run.gather(nodes.prepare(lambda host: survey_of(host, None)))
    for host in [host for host in nodes.hosts if outcome_of(host).refusals]:
        run.documents.append(outcome_document(host.name, run.judged(host)))
    ranks = {one.service.nodes for found in there.values() for one in all_deployed(found).values()}
    every = run.chosen or list(
        run.inventory
    )  # also those that are lost: another may be held by one
    wishes = {host.name: found for host in every if (found := right_wishes_of(host)) is not None}
    several, held = batches_of(run, there, wishes, batch, ranks=sorted(ranks - {()}))
    for host in held + roll(run, several, lambda some: _acted(run, register, only, some)):
        run.documents.append(outcome_document(host.name, outcome_of(host)) | {"begun": False})
    run.finish()


@click.command()
@COMMON
@click.option("--service", "only", multiple=True, help="Only this service; may be repeated.")
@click.option("--now", is_flag=True, help="Wait for nothing: what is in flight is lost.")
@click.option("--yes", is_flag=True, help="With --now: do not ask.")
@with_run
def stop(run: Run, only: tuple[str, ...], now: bool, yes: bool) -> None:
    """Stop services: requests in flight are finished first. They start again with the node, and with Docker."""
    if now:
        stop_now(run, only, yes)

    def register(host: Host) -> None:
        found = survey_of(host, None)
        if found is None:
            return
        for name, one in chosen(found, only).items():
            rotation.leave(hooks_of(host), one.service, one.release, comes_back=False)
            service.stopped(name_of_service=name, release=one.release, name=f"Stop {name}")
        operations_of_apply.released(name="Give the apply lock back")

    _act(run, register, stops=only)


def _act(run: Run, register: Any, *, stops: tuple[str, ...] | None = None) -> NoReturn:
    """Do something on each node; ``stops``: the services that it stops, () for all of them."""
    _acted(run, register, stops)
    run.finish()


def _acted(
    run: Run, register: Any, stops: tuple[str, ...] | None, hosts: list[Host] | None = None
) -> bool:
    """Do something on each node, or on some; say whether it went well on all of them."""
    before = len(run.documents)
    with run.nodes(__file__, hosts) as nodes:
        if stops is not None:
            refuse_alone(run, nodes, stops)
        run.gather(nodes.prepare(register))
        nodes.execute(run.step)
        for host in nodes.hosts:
            if nodes.connect_error(host) is None and not any(
                d["node"] == host.name for d in run.documents
            ):
                run.documents.append(outcome_document(host.name, run.judged(host)))
    return not any(went_wrong(one) for one in run.documents[before:])


@click.command()
@COMMON
@click.option(
    "--prometheus",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write metrics here too, for the textfile collector (a name that ends with .prom).",
)
@with_run
def status(run: Run, prometheus: Path | None) -> None:
    """One line per service: release, runtime, state, since when, drift."""
    if prometheus is not None and prometheus.suffix != ".prom":
        raise click.UsageError(
            f"--prometheus {prometheus}: node_exporter's textfile collector reads files whose name "
            f"ends with .prom alone: write {prometheus}.prom"
        )
    rows: list[ServiceLine] = []
    surveys = []
    with run.nodes(__file__) as nodes:
        for host, found in run.gather(nodes.prepare(lambda host: survey_of(host, None))).items():
            surveys.append(found)
            lines, door = service_lines(found), door_line(found)
            rows += [*lines, *([door] if door else [])]
            run.documents.append(
                {"node": host.name, "services": [line.as_dict() for line in lines]}
                | ({"door": door.as_dict()} if door else {})
            )
            run.documents[-1] |= maintenance_document(run, found)
            if not lines and not door:
                run.out.print(f"{host.name}  nothing deployed", markup=False)
            if any(line.bad for line in lines) or (door and door.bad):
                run.exits.append(Exit.FAILED)
    if rows:
        report.table(run.out, [row.cells for row in rows], ServiceLine.HEADER)
    if prometheus is not None:
        lost = [one["node"] for one in run.documents if "error" in one]
        # The collector runs as a user of its own, and nothing in it is secret.
        write_whole(prometheus, metrics(surveys, lost, time.time()), 0o644)
    run.finish()


@click.command()
@COMMON
@click.option("--service", "only", multiple=True, help="Only this service; may be repeated.")
@click.option("--weights", is_flag=True, help="Take the weights away too.")
@click.option("--records", is_flag=True, help="Take the records of deployments away too.")
@click.option("--drop-ins", is_flag=True, help="Take your own drop-ins away too.")
@click.option("--environments", is_flag=True, help="Take environments and Pythons away too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@ALLOW_RELOAD
@with_run
def remove(
    run: Run, only: tuple[str, ...], weights: bool, records: bool, drop_ins: bool,
    environments: bool, yes: bool, allow_daemon_reload: bool,
) -> None:  # fmt: skip
    """Take away what the toolkit put there; keep weights, drop-ins and records unless asked."""
    what = ", ".join(only) if only else "every service"
    nodes_named = None if run.chosen is None else ", ".join(host.name for host in run.chosen)
    where = f"{nodes_named} of {run.target}" if nodes_named else run.target
    ask(f"Remove {what} of {where}?", "nothing was removed", f"to remove {what}", yes=yes)
    take = Take(weights, records, drop_ins, environments)
    with run.nodes(__file__) as nodes:
        allow = allow_daemon_reload
        refuse_alone(run, nodes, only, running=True)
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
                done = "removed" if "" in outcome.said else "no service of the toolkit is here"
                told = "; kept: " + ", ".join(kept) if kept else ""
                run.out.print(f"{host.name}  {done}{told}", markup=False, soft_wrap=True)
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
