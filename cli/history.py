"""The command that tells what was deployed, and why."""

from __future__ import annotations

import click

from cli import report
from cli.context import Run
from cli.options import COMMON, with_run
from deploys.past import HISTORY, MOST, survey_with_past
from plans.history import Entry, histories


@click.command()
@COMMON
@click.option("--service", "only", multiple=True, help="Only this service; may be repeated.")
@click.option(
    "--last",
    type=click.IntRange(1, MOST),
    default=HISTORY,
    show_default=True,
    help="So many deployments of each service, beside the current one.",
)
@with_run
def history(run: Run, only: tuple[str, ...], last: int) -> None:
    """What was deployed: number, release, image, build, when, how it went, and why it was made."""
    with run.nodes(__file__) as nodes:
        surveys = run.gather(nodes.prepare(lambda host: survey_with_past(host, last)))
        for host, found in surveys.items():
            told = histories(found, only)
            if missing := [name for name in only if name not in {one.service for one in told}]:
                run.failed(host.name, f"no deployment of {', '.join(missing)}", "NOT_DEPLOYED")
                continue
            run.documents.append({"node": host.name, "services": [one.as_dict() for one in told]})
            if not told:
                run.out.print(f"{host.name}  nothing deployed", markup=False)
                continue
            rows = [(host.name, *entry.cells) for one in told for entry in one.entries]
            report.table(run.out, rows, ("node", *Entry.HEADER))
            for one in told:
                if one.unread:
                    run.out.print(
                        f"  {one.service}: {one.unread} older not shown (--last)", markup=False
                    )
    run.finish()
