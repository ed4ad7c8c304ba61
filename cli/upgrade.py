"""The command that brings another release to nodes: proved, watched, and taken back where it fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import click
from pyinfra.api.host import Host

from cli import report
from cli.asking import ask
from cli.context import Run, Stop, outcome_document
from cli.exits import Exit
from cli.locking import lock_of
from cli.options import ALLOW_RELOAD, COMMON, with_run
from cli.ranks import as_one
from cli.rolling import batches_of, read_batch, roll
from cli.secrets import secrets_of
from deploys.back import WayBack
from deploys.node import Options, hooks_of, plan_node
from deploys.upgrade import (
    Failed,
    apply_upgrade,
    failed_of,
    put_back,
    take_back,
    way_back_from,
    why_of,
    with_their_ranks,
)
from facts.survey import forget_survey
from operations.outcomes import forget_outcome, is_bad, outcome_of
from plans.ahead import AHEAD_LIMIT
from plans.plan import NodePlan
from plans.soaking import DEFAULT_S, read_length
from plans.upgrading import (
    NotUpgradable,
    keys_to_set,
    minutes,
    seconds_by_the_records,
    to_prove,
    with_release,
)
from plans.wishes import Wishes
from releases.table import UnknownRelease


@dataclass
class _Upgrade:
    """One run of the command."""

    run: Run
    release: str
    only: tuple[str, ...]
    soak: float
    wishes: dict[str, Wishes]  # with the new release
    options: Options
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)

    def plan(self, host: Host) -> NodePlan | None:
        plan = plan_node(host, self.wishes[host.name], self.options)
        return plan and plan.of_some()

    def begun_with(self, plan: NodePlan) -> bool:
        return bool(plan.changes or to_prove(plan))


@click.command()
@COMMON
@click.option("--to", required=True, metavar="VERSION", help="The release to go to.")
@click.option("--service", "only", multiple=True, help="Only this service; may be repeated.")
@click.option(
    "--batch",
    default="1",
    metavar="N|N%",
    callback=read_batch,
    help="Nodes that are changed at the same time; the next ones once these are good [1].",
)
@click.option(
    "--soak",
    default=f"{DEFAULT_S:g}s",
    metavar="TIME",
    help=f"How long each is watched before it counts, such as 90s or 10m [{DEFAULT_S:g}s].",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@ALLOW_RELOAD
@with_run
def upgrade(
    run: Run, to: str, only: tuple[str, ...], batch: str, soak: str, yes: bool,
    allow_daemon_reload: bool,
) -> None:  # fmt: skip
    """Go to another release, batch by batch: prove it harder than ready, watch it, and go back by
    itself where it is worse."""
    try:
        seconds = read_length(soak)
    except ValueError as error:
        raise click.UsageError(f"--soak {error}") from None
    if seconds >= run.bounds.node_s:
        raise click.UsageError(
            f"--soak {soak}: longer than the {run.bounds.node_s:g} s that a node may take in all; "
            "give --node-limit SECONDS too"
        )
    before = run.wishes()
    wishes = upgraded(before, to, only)
    lock, _ = lock_of(run)
    secrets = secrets_of(run, wishes)
    options = Options(lock, False, allow_daemon_reload, secrets, with_door=not only)
    this = _Upgrade(run, to, only, seconds, wishes, options)
    concerned = [host for host in run.chosen or run.inventory if host.name in wishes]
    with run.nodes(__file__, concerned) as nodes:
        plans = as_one(run.gather(nodes.prepare(this.plan)))
    going = _told(this, plans)
    several, held = batches_of(run, going, wishes, batch, going)
    for host in held:
        del going[host]
    if going:
        _say_how_long(this, going, several)
        many = len(going)
        ask(
            f"Upgrade {many} node{'s' if many > 1 else ''} to SGLang {to}?",
            "nothing was upgraded",
            f"to upgrade to {to}",
            yes=yes,
        )
    left = held + roll(run, several, lambda hosts: _change(this, hosts))
    for host in left:
        this.documents[host.name]["upgrade"] = "not begun"
    run.documents += list(this.documents.values())
    _remind(this, before, [name for name, one in this.documents.items() if _is_there(one)])
    run.finish()


def upgraded(before: dict[str, Wishes], release: str, only: tuple[str, ...]) -> dict[str, Wishes]:
    """Return the wishes with that release, of the nodes that have one of the services, by node.

    Raises Stop.
    """
    known = {service.name for wishes in before.values() for service in wishes.services}
    if missing := [name for name in only if name not in known]:
        raise Stop(
            Exit.USAGE,
            f"--service {', '.join(missing)}: the inventory has {', '.join(sorted(known))}",
        )
    found, messages = {}, []
    for name, wishes in before.items():
        try:
            changed = with_release(wishes, release, only, name)
            if changed.services:  # else it has none of those that were named
                found[name] = changed
        except UnknownRelease as error:
            raise Stop(Exit.USAGE, f"--to {release}: {error}") from None
        except NotUpgradable as error:
            messages.append(str(error))
    if messages:
        raise Stop(Exit.USAGE, *messages)
    return found


def _told(this: _Upgrade, plans: dict[Host, NodePlan]) -> dict[Host, NodePlan]:
    """Print what the upgrade means for each node; return those that it changes."""
    run, going = this.run, {}
    report.plans(run.out, plans.values(), diff=False, details=run.verbosity > 0)
    for host, plan in plans.items():
        run.planned(plan)
        document = plan.as_dict()
        if plan.refusals or plan.unresolved:
            run.exits.append(Exit.REFUSED)
            document["upgrade"] = "refused"
        elif this.begun_with(plan):
            going[host] = plan
        else:
            document["upgrade"] = "unchanged"
        this.documents[host.name] = document
    if any(plan.unresolved and not plan.refusals for plan in plans.values()):
        run.err.print(
            f"the lock does not have what SGLang {this.release} needs: "
            f"sglang-node lock {run.target} --to {this.release}",
            markup=False,
            soft_wrap=True,
            style="red",
        )
    return going


def _say_how_long(this: _Upgrade, going: dict[Host, NodePlan], several: list[list[Host]]) -> None:
    told = [one for plan in going.values() if (one := seconds_by_the_records(plan, this.soak))]
    parts = [f"each is watched for {minutes(this.soak)} after it was proved"]
    if len(several) > 1:
        parts.insert(0, f"{len(going)} nodes in {len(several)} batches")
    if told:
        took = minutes(max(told) * len(several))
        parts.append(f"by the last records starts and watches take about {took} in all")
    if any(one.ahead and one.ahead.before for plan in going.values() for one in plan.services):
        parts.append(
            f"kernels compiled while the old one serves at most {minutes(AHEAD_LIMIT)} more"
        )
    this.run.err.print("; ".join(parts), markup=False, soft_wrap=True)


def _change(this: _Upgrade, hosts: list[Host]) -> bool:
    """Upgrade one batch; take back what fails. Say whether it is good."""
    run, good = this.run, True
    for host in hosts:
        forget_outcome(host)
    documents_before = len(run.documents)
    with run.nodes(__file__, hosts) as nodes:
        plans = as_one(run.gather(nodes.prepare(this.plan)))
        going = {}
        for host, plan in plans.items():
            if plan.refusals or plan.unresolved:
                # It is another node than it was when the run began.
                report.plan(run.out, plan, diff=False)
                run.exits.append(Exit.REFUSED)
                this.documents[host.name] |= plan.as_dict() | {"upgrade": "refused"}
                good = False
            else:
                going[host] = plan
        run.gather(
            nodes.prepare(
                lambda host: apply_upgrade(going[host], this.soak) if host in going else None
            )
        )
        nodes.execute(run.step)
    failed: dict[Host, dict[str, Failed]] = {}
    for host, plan in going.items():
        outcome = run.judged(host)
        document = this.documents[host.name]
        document |= outcome_document(host.name, outcome)
        if not is_bad(outcome):
            document["upgrade"] = "done"
            continue
        good = False
        if not outcome.begun:
            document["upgrade"] = "not begun"
            continue
        document["upgrade"], document["why"] = "failed", why_of(outcome)
        failed[host] = failed_of(plan, outcome)
    for host, several in with_their_ranks(going, failed).items():
        why = "; ".join(dict.fromkeys(one.why for one in several.values()))
        if host not in failed:
            this.documents[host.name] |= {"upgrade": "failed", "why": why}
        failed.setdefault(host, {}).update(several)
    # Of those that could not be reached or surveyed the run has said why.
    lost = run.documents[documents_before:]
    del run.documents[documents_before:]
    for one in lost:
        this.documents[one["node"]] |= one | {"upgrade": "failed"}
        good = False
    if failed:
        _take_back(this, failed)
    if not good:
        run.exits.append(Exit.FAILED)
    return good


# --- the way back


def _take_back(this: _Upgrade, failed: dict[Host, dict[str, Failed]]) -> None:
    run = this.run
    for host, several in failed.items():
        if not several:
            lost = outcome_of(host).lost
            then = "run the same command again" + (": it goes on from there" if lost else "")
            _end(this, host, then if lost else f"what runs stays; once that is mended {then}")
    with_way = [host for host, several in failed.items() if several]
    if not with_way:
        return
    left = {}
    for host in with_way:
        forget_survey(host)
        left[host] = forget_outcome(host).left
    allow = this.options.allow_daemon_reload

    def look(host: Host) -> WayBack | None:
        return way_back_from(host, failed[host], this.options.lock, allow_daemon_reload=allow)

    documents_before = len(run.documents)
    with run.nodes(__file__, with_way) as nodes:
        ways = run.gather(nodes.prepare(look))
        going = {host: way for host, way in ways.items() if way.backs and not way.refused}
        out = {host: left[host] for host, way in ways.items() if not way.backs and left[host]}
        run.gather(
            nodes.prepare(
                lambda host: (
                    take_back(going[host], failed[host], hooks_of(host)) if host in going else None
                )
            )
        )
        run.gather(nodes.prepare(lambda h: put_back(h, out[h], hooks_of(h)) if h in out else None))
        nodes.execute(run.step)
    del run.documents[documents_before:]  # said, and the node has its document
    for host in with_way:
        way = ways.get(host)
        if way is None:
            _end(this, host, "it could not be taken back: it was not reached or not read")
        elif not way.backs:
            serves = "nothing was switched: what served before serves on"
            if host in out:
                run.judged(host)
                well = not is_bad(outcome_of(host))
                serves += ", back in the rotation" if well else ", and is out of the rotation"
            _end(this, host, serves)
        elif way.refused:
            if way.again is not None:
                report.plan(run.out, way.again, diff=False)
            for one in way.backs:
                for refusal in one.refusals:
                    report.refusal_lines(run.out, refusal)
            _end(this, host, "there is no way back")
        else:
            outcome = outcome_of(host)
            run.judged(host)
            where = ", ".join(f"deployment {one.number}, SGLang {one.release}" for one in way.backs)
            bad = is_bad(outcome)
            logs = ", ".join(
                f"{one.plan.number}" for name, one in failed[host].items() if one.plan.number
            )
            said = f"went back to {where}; the logs are in its deployment {logs}"
            this.documents[host.name]["back"] = {"ok": not bad, "to": way.as_dict()["services"]}
            if bad:
                answers = all(
                    (verdict := outcome.verdicts.get(one.name)) is not None and verdict.ok
                    for one in way.backs
                )
                went = f"it went back to {where} and answers, but: " if answers else ""
                said = f"{went or 'going back failed: '}{why_of(outcome)}"
            _end(this, host, said)


def _end(this: _Upgrade, host: Host, then: str) -> None:
    """Say in one sentence why a node's upgrade failed, and what it came to."""
    document = this.documents[host.name]
    document["then"] = then
    this.run.err.print(
        f"{host.name}  the upgrade to SGLang {this.release} failed: {document['why']}; {then}",
        markup=False,
        soft_wrap=True,
        style="red",
    )


def _is_there(document: dict[str, Any]) -> bool:
    return document.get("upgrade") in ("done", "unchanged")


def _remind(this: _Upgrade, before: dict[str, Wishes], names: list[str]) -> None:
    """Say which keys of the inventory the next apply would take the upgrade back by."""
    told: dict[str, None] = {}
    for name in names:
        told |= dict.fromkeys(keys_to_set(before[name], this.release, this.only))
    for key in told:
        this.run.err.print(
            f"now set in {this.run.target}: {key}; the next apply would else take the upgrade back",
            markup=False,
            soft_wrap=True,
        )
