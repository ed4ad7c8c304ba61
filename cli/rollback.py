"""The command that goes back to an earlier deployment."""

from __future__ import annotations

import click
from pyinfra.api.host import Host

from cli import report
from cli.context import Run, outcome_document
from cli.exits import Exit
from cli.locking import lock_of
from cli.options import ALLOW_RELOAD, COMMON, with_run
from cli.ranks import refuse_alone
from deploys.back import WayBack, apply_way_back, way_back
from deploys.node import hooks_of
from deploys.past import survey_with_past
from facts.records import Survey


@click.command()
@COMMON
@click.option("--service", "only", multiple=True, help="Only this service; may be repeated.")
@click.option(
    "--to",
    type=click.IntRange(1, 999_999_999),
    metavar="N",
    help="This deployment (history tells their numbers) instead of the previous one.",
)
@ALLOW_RELOAD
@with_run
def rollback(run: Run, only: tuple[str, ...], to: int | None, allow_daemon_reload: bool) -> None:
    """Go back to the previous deployment, or a named one: a restart, with nothing fetched; then verify."""
    lock, _ = lock_of(run)

    def survey(host: Host) -> Survey | None:
        return survey_with_past(host, 1, "back" if to is None else str(to))

    def look(host: Host) -> WayBack | None:
        found = survey(host)
        if found is None:
            return None
        allow = allow_daemon_reload
        return way_back(host, found, only, to, lock, allow_daemon_reload=allow)

    with run.nodes(__file__) as nodes:
        refuse_alone(run, nodes, only, survey=survey)
        ways = run.gather(nodes.prepare(look))
        for way in ways.values():
            _show(run, way)
        going = {host: way for host, way in ways.items() if not way.refused}
        run.gather(
            nodes.prepare(
                lambda host: apply_way_back(going[host], hooks_of(host)) if host in going else None
            )
        )
        nodes.execute(run.step)
        for host, way in ways.items():
            document = way.as_dict()
            if host in going:
                outcome = run.judged(host)
                document |= outcome_document(host.name, outcome)
                if not outcome.failures and not outcome.refusals:
                    _remind(run, way)
            run.documents.append(document)
    run.finish()


def _show(run: Run, way: WayBack) -> None:
    for one in way.backs:
        if one.refusals:
            run.out.print(f"{way.node}  {one.name}: refused", style="red")
        else:
            run.out.print(
                f"{way.node}  {one.name}: from deployment {one.current} to {one.number}, "
                f"SGLang {one.release}",
                markup=False,
                soft_wrap=True,
            )
        for refusal in one.refusals:
            report.refusal_lines(run.out, refusal)
        for caution in one.cautions:
            report.caution_line(run.out, caution)
        if one.moved and not one.refusals:
            run.out.print(
                f"  planned again, as deployment {one.number} was wished for: {'; '.join(one.moved)}",
                markup=False,
                soft_wrap=True,
            )
        for change in one.changes:
            run.out.print(
                f"  ~ {change.kind}  {change.what}: {change.why}", markup=False, soft_wrap=True
            )
    if way.again is not None:
        report.plan(run.out, way.again, diff=False)
    if way.refused:
        run.exits.append(Exit.REFUSED)


def _remind(run: Run, way: WayBack) -> None:
    for one in way.backs:
        run.err.print(
            f"{way.node}  {one.name}: what is wished for is still the other one: change it before "
            "the next apply",
            markup=False,
            soft_wrap=True,
        )
