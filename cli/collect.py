"""The command that takes away what earlier deployments left."""

from __future__ import annotations

import re

import click

from cli import report
from cli.context import Run, outcome_document
from cli.exits import Exit
from cli.options import COMMON, with_run
from deploys.collecting import collect_on, collection_of
from operations.collection import SAID
from plans import text
from plans.collecting import collected
from plans.collection import Collection
from plans.wishes import Collect

UNITS = {"h": 3600, "d": 86400, "w": 7 * 86400}


DEFAULTS = Collect()


def age(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Return the seconds of an age such as ``30d``, ``2w`` or ``12h``; None where none is given."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d{1,6})([hdw])", value)
    if found is None:
        raise click.BadParameter("an age is a number and h, d or w: 30d")
    return int(found[1]) * UNITS[found[2]]


@click.command()
@COMMON
@click.option(
    "--keep",
    type=click.IntRange(1, 1000),
    metavar="N",
    help=f"Newest deployments of each service that stay, whatever their age [{DEFAULTS.keep}].",
)
@click.option(
    "--older-than",
    callback=age,
    metavar="AGE",
    help="What was of use within this time stays: a number and h, d or w "
    f"[{DEFAULTS.older_than_days:g}d].",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and take nothing.")
@with_run
def collect(run: Run, keep: int | None, older_than: int | None, dry_run: bool) -> None:
    """Take old deployments away, with their kernel caches, environments, Pythons and images."""
    with run.nodes(__file__) as nodes:
        found = run.gather(nodes.prepare(lambda host: collection_of(host, keep, older_than)))
        for host, one in found.items():
            _show(run, host.name, one)
        acts = {host: one for host, one in found.items() if one.items and not dry_run}
        if acts:
            run.gather(nodes.prepare(lambda host: collect_on(acts[host]) if host in acts else None))
            nodes.execute(run.step)
        for host in nodes.hosts:
            if nodes.connect_error(host) is not None:
                continue
            outcome = run.judged(host)
            document = {**outcome_document(host.name, outcome)}
            if host in found:
                document |= found[host].as_dict()
                document["refusals"] += [one.as_dict() for one in outcome.refusals]
            if host in acts and SAID in outcome.said:
                done = collected(outcome.said[SAID])
                document["collected"] = done.as_dict()
                for left in done.left:
                    run.out.print(f"  left: {left.what}: {left.why}", markup=False, soft_wrap=True)
                freed = "" if done.freed is None else f", {text.size(done.freed)} freed"
                run.out.print(
                    f"{host.name}  {_things(len(done.gone))} collected{freed}",
                    markup=False,
                    soft_wrap=True,
                )
            run.documents.append(document)
    run.finish()


def _things(count: int) -> str:
    return f"{count} thing{'' if count == 1 else 's'}"


def _show(run: Run, node: str, one: Collection) -> None:
    if one.refusals:
        run.exits.append(Exit.REFUSED)
        run.out.print(f"{node}  refused", style="red")
        for refusal in one.refusals:
            report.refusal_lines(run.out, refusal)
        return
    most = f", {text.size(one.size)} at most" if one.items else ""
    count = f"{_things(len(one.items))} to collect" if one.items else "nothing to collect"
    run.out.print(f"{node}  {count}{most}", markup=False, soft_wrap=True)
    for item in one.items:
        size = f", {text.size(item.size)}" if item.size else ""
        run.out.print(
            f"  - {item.kind} {item.what}{size}: {item.why}", markup=False, soft_wrap=True
        )
    for left in one.left:
        run.out.print(f"  left: {left.what}: {left.why}", markup=False, soft_wrap=True)
    for service, numbers in one.kept.items():
        kept = ", ".join(map(str, numbers))
        run.out.print(f"  kept: {service}: deployments {kept}", markup=False, soft_wrap=True)
