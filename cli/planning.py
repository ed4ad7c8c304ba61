"""The two commands that plan: one shows it, the other makes it so."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import click
from pyinfra.api.host import Host

from cli import report, saved
from cli.context import Run, Stop, outcome_document
from cli.exits import Exit
from cli.locking import incomplete, lock_of, made_lock
from cli.options import ALLOW_RELOAD, COMMON, ONE_BOX, with_run
from cli.secrets import hub_token_of, secrets_of
from deploys.node import (
    Options,
    apply_plan,
    plan_node,
    plan_of,
    survey_of,
)
from facts.records import Survey
from facts.survey import SurveyError, read_recorded
from plans import text
from plans.plan import NodePlan


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
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the plan here, for apply --plan.",
)
@click.option(
    "--discard-edits", is_flag=True, help="Plan to replace managed files that were edited by hand."
)
@ALLOW_RELOAD
@with_run
def plan(
    run: Run, diff: bool, check: bool, surveys: Path | None, assume: tuple[str, ...],
    out: Path | None, discard_edits: bool, allow_daemon_reload: bool,
) -> None:  # fmt: skip
    """Show what apply would do to each node, and why; change nothing."""
    assumed = _assumed(assume)
    if out is not None and run.data is not None and run.data["services"][0].get("environment"):
        raise click.UsageError("--out with --env: a kept plan has no values; write an inventory")
    wishes = run.wishes()
    existing, path = lock_of(run)
    options = Options(
        existing, discard_edits, allow_daemon_reload, secrets_of(run, wishes, needed=False)
    )
    plans: list[NodePlan] = []
    if surveys is not None:
        for name, one in wishes.items():
            try:
                found = _recorded(surveys, name)
            except SurveyError as error:
                run.failed(name, str(error), "SURVEY_FAILED")
                continue
            plans.append(plan_of(assumed(found), one, options))
    else:
        with run.nodes(__file__) as nodes:

            def make(host: Host) -> NodePlan | None:
                found = survey_of(host, wishes[host.name])
                if found is None:
                    return None
                return plan_of(assumed(found), wishes[host.name], options, now=time.time())

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
        saved.keep(run, out, plans, wishes, options)
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
@ALLOW_RELOAD
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Apply a plan that plan --out kept; refused where a node has changed since.",
)
@with_run
def apply(
    run: Run, diff: bool, discard_edits: bool, allow_daemon_reload: bool, plan_file: Path | None
) -> None:
    """Make each node serve what it shall, then verify by a real generation."""
    words = discard_edits or allow_daemon_reload
    kept = saved.load(run, plan_file, words=words) if plan_file else None
    wishes = saved.wishes_of(run, kept) if kept else run.wishes()
    secrets = secrets_of(run, wishes)
    existing = kept.lock_of() if kept else lock_of(run)[0]
    if kept is None and incomplete(existing, wishes.values()):
        run.err.print(
            "the lock does not have all that is needed: asking registry and hub", style="dim"
        )
        token = hub_token_of(run, secrets)
        existing = made_lock(run, wishes.values(), existing, refresh=False, hub_token=token)
    options = Options(existing, discard_edits, allow_daemon_reload, secrets)

    def make(host: Host) -> NodePlan | None:
        if kept is None:
            return plan_node(host, wishes[host.name], options)
        given = saved.options_of(kept, host.name, secrets)
        now = plan_node(host, wishes[host.name], given)
        return now and saved.still_so(kept, now)

    with run.nodes(__file__) as nodes:
        plans = run.gather(nodes.prepare(make))
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
