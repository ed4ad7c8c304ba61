"""The two commands that plan: one shows it, the other makes it so."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from pyinfra.api.host import Host

from cli import report, saved
from cli.bundle import keep_lock, opened, with_bundle
from cli.context import Run, Stop, outcome_document
from cli.exits import Exit
from cli.html import report as fleet_report
from cli.keep import write_private
from cli.locking import lock_of, with_lock
from cli.options import ALLOW_RELOAD, BUNDLE, COMMON, ONE_BOX, with_run
from cli.ranks import as_one
from cli.rolling import batches_of, from_shared, in_turns, read_batch, roll
from cli.secrets import secrets_of
from cli.session import Session
from deploys.fleetdoors import with_strangers
from deploys.node import (
    Options,
    apply_plan,
    plan_node,
    plan_of,
    survey_of,
    unresolved_refusals,
)
from facts.records import Survey
from facts.survey import SurveyError, read_recorded
from operations.outcomes import is_bad, outcome_of
from plans import text
from plans.plan import NodePlan
from plans.ranks import together
from plans.wishes import Wishes


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
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the plan of the fleet here too, as one HTML file to send to someone.",
)
@click.option(
    "--discard-edits", is_flag=True, help="Plan to replace managed files that were edited by hand."
)
@ALLOW_RELOAD
@BUNDLE
@with_run
def plan(
    run: Run, diff: bool, check: bool, surveys: Path | None, assume: tuple[str, ...],
    out: Path | None, html: Path | None, discard_edits: bool, allow_daemon_reload: bool,
    bundle_file: Path | None, bundle_sha256: str | None,
) -> None:  # fmt: skip
    """Show what apply would do to each node, and why; change nothing."""
    assumed = _assumed(assume)
    if out is not None and run.data is not None and run.data["services"][0].get("environment"):
        raise click.UsageError("--out with --env: a kept plan has no values; write an inventory")
    if out is not None and bundle_file is not None:
        raise click.UsageError("--out with --bundle: a kept plan takes nothing from a bundle")
    wishes = run.wishes()
    existing, path = lock_of(run)
    options = Options(
        existing, discard_edits, allow_daemon_reload, secrets_of(run, wishes, needed=False)
    )
    options = with_bundle(options, opened(run, bundle_file, bundle_sha256, wishes))
    existing = options.lock
    plans: list[NodePlan] = []
    if surveys is not None:
        for name, one in wishes.items():
            try:
                found = recorded(surveys, name)
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
                mine = wishes[host.name]
                made = plan_of(assumed(found), mine, options, now=time.time())
                return with_strangers(made, host, mine.door)

            plans += run.gather(nodes.prepare(make)).values()
    own = plans  # a kept plan is compared with each node's own
    plans = list(together({one.node: one for one in plans}).values())
    report.plans(run.out, plans, diff=diff, details=run.verbosity > 0)
    going = {one.node: one for one in plans if one.changes and not one.refusals}
    for line in from_shared([list(going)], going, wishes)[1]:
        run.err.print(line, markup=False, soft_wrap=True)
    if html is not None:
        _write_html(run, html, plans)
    for one_plan in plans:
        run.planned(one_plan)
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
        saved.keep(run, out, own, wishes, options)
    run.finish()


def _write_html(run: Run, path: Path, plans: list[NodePlan]) -> None:
    failed = [(one["node"], one["error"]["text"]) for one in run.documents if "error" in one]
    at = time.strftime("%Y-%m-%d %H:%M %Z")
    write_private(path, fleet_report(plans, failed, run.target, at))
    run.err.print(f"wrote {path}", markup=False, soft_wrap=True)


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


def recorded(folder: Path, node: str) -> Survey:
    """Return the recorded survey of a node in a folder. Raises Stop, and SurveyError."""
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
@click.option(
    "--batch",
    metavar="N|N%",
    callback=read_batch,
    help="Nodes that are changed at the same time; a batch that fails stops the run [all].",
)
@BUNDLE
@with_run
def apply(
    run: Run, diff: bool, discard_edits: bool, allow_daemon_reload: bool, plan_file: Path | None,
    batch: str | None, bundle_file: Path | None, bundle_sha256: str | None,
) -> None:  # fmt: skip
    """Make each node serve what it shall, then verify by a real generation."""
    if plan_file is not None and bundle_file is not None:
        raise click.UsageError("--plan with --bundle: a kept plan takes nothing from a bundle")
    words = discard_edits or allow_daemon_reload
    kept = saved.load(run, plan_file, words=words) if plan_file else None
    wishes = saved.wishes_of(run, kept) if kept else run.wishes()
    secrets = secrets_of(run, wishes)
    existing = kept.lock_of() if kept else lock_of(run)[0]
    found = opened(run, bundle_file, bundle_sha256, wishes)
    if found is not None:
        keep_lock(run, found)
    options = Options(existing, discard_edits, allow_daemon_reload, secrets)
    options = with_bundle(options, found)

    def make(host: Host) -> NodePlan | None:
        if kept is None:
            return plan_node(host, wishes[host.name], options)
        given = saved.options_of(kept, host.name, secrets)
        now = plan_node(host, wishes[host.name], given)
        return now and saved.still_so(kept, now)

    with run.nodes(__file__) as nodes:
        plans = run.gather(nodes.prepare(make))
        if kept is None and found is None:
            plans, made = with_lock(run, plans, wishes, options)
            options = dataclasses.replace(options, lock=made)
        plans = as_one(plans)
        going = {}
        report.plans(run.out, plans.values(), diff=diff, details=run.verbosity > 0)
        for host, one in plans.items():
            run.planned(one)
            if one.refusals or one.unresolved:
                run.exits.append(Exit.REFUSED)
            elif one.changes:
                going[host] = one
        if batch is None and in_turns(run, going, wishes):
            batch = "100%"
        if batch is None:
            _carry_out(run, nodes, going)
    left = [] if batch is None else _in_batches(run, going, wishes, batch, make)
    for host, one in plans.items():
        document = one.as_dict()
        if not one.refusals:
            lacking = unresolved_refusals(one, run.target)
            document["refusals"] = [refusal.as_dict() for refusal in lacking]
        if host in left:
            document["begun"] = False
        elif host in going and not _has_error(run, host):
            outcome = run.judged(host)
            document |= outcome_document(host.name, outcome)
            document["refusals"] = document["refusals"] or one.as_dict()["refusals"]
        if not _has_error(run, host):
            run.documents.append(document)
    run.finish()


def _carry_out(run: Run, nodes: Session, going: dict[Host, NodePlan]) -> None:
    run.gather(nodes.prepare(lambda host: apply_plan(going[host]) if host in going else None))
    nodes.execute(run.step)


def _in_batches(
    run: Run,
    going: dict[Host, NodePlan],
    wishes: dict[str, Wishes],
    batch: str,
    make: Callable[[Host], NodePlan | None],
) -> list[Host]:
    """Apply batch after batch until one fails; return the nodes that were not begun with."""

    def change(hosts: list[Host]) -> bool:
        with run.nodes(__file__, hosts) as nodes:
            # Time has passed: what is applied is planned from what the node is now.
            again = as_one(run.gather(nodes.prepare(make)))
            clear = {
                host: one
                for host, one in again.items()
                if not _refused(run, host, one) and one.changes
            }
            _carry_out(run, nodes, clear)
        return not any(_has_error(run, host) or is_bad(outcome_of(host)) for host in hosts)

    several, held = batches_of(run, going, wishes, batch, going)
    return held + roll(run, several, change)


def _refused(run: Run, host: Host, plan: NodePlan) -> bool:
    """Say whether a node is refused that was not when the run began; keep why."""
    if not (plan.refusals or plan.unresolved):
        return False
    report.plan(run.out, plan, diff=False)
    run.failed(host.name, "it has changed since this run began: its plan is refused now")
    return True


def _has_error(run: Run, host: Host) -> bool:
    return any(one["node"] == host.name and "error" in one for one in run.documents)
