"""Bundles: ``bundle`` makes one of a node, ``plan`` and ``apply --bundle`` install from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import click
from pyinfra.api.host import Host

from cli.context import Run, Stop, outcome_document
from cli.exits import Exit
from cli.locking import lock_of, with_lock
from cli.options import COMMON, ONE_BOX, with_run
from cli.secrets import secrets_of
from deploys.bundle import make_bundle
from deploys.node import Options, plan_node
from locks.lockfile import LockError, write_lock
from locks.records import Lock
from locks.where import lock_path
from operations.archive import beside, open_bundle
from operations.bundle import Making
from plans import text
from plans.bundle import Bundle, BundleError
from plans.bundled import other_lock
from plans.bundling import differing, ingredients, manifest_of, summary
from plans.plan import NodePlan
from plans.refusals import Refusal
from plans.wishes import Wishes


@click.command()
@COMMON
@ONE_BOX
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the bundle here, and the hash of its manifest beside it.",
)
@click.option("--weights", is_flag=True, help="The weights of hub models too.")
@click.option("--no-images", is_flag=True, help="Leave images out: for nodes that have them.")
@with_run
def bundle(run: Run, out: Path, weights: bool, no_images: bool) -> None:
    """Make one archive of what a node's services need, for nodes without a network."""
    if not out.absolute().parent.is_dir():
        raise click.UsageError(f"--out {out}: there is no such folder")
    wishes = run.wishes()
    secrets = secrets_of(run, wishes)
    lock, _ = lock_of(run)
    options = Options(lock, secrets=secrets)
    making: Making | None = None
    with run.nodes(__file__) as nodes:
        plans = run.gather(nodes.prepare(lambda host: plan_node(host, wishes[host.name], options)))
        plans, lock = with_lock(run, plans, wishes, options)
        lock = lock or Lock()
        maker = next(iter(plans), None)
        if maker is not None and not _refused(run, plans, maker):
            making = _making(plans[maker], lock, out, weights=weights, images=not no_images)
        if maker is not None and making is not None:
            chosen = making
            run.gather(
                nodes.prepare(lambda h: make_bundle(plans[h], chosen) if h is maker else None)
            )
            nodes.execute(run.step)
            outcome = run.judged(maker)
            run.documents.append(outcome_document(maker.name, outcome))
    if making is None or making.sha256 is None or making.manifest is None:
        run.finish()
        return
    about = summary(making.manifest)
    size = text.size(out.stat().st_size)
    run.out.print(f"{out}  {size}  manifest sha256 {making.sha256}", markup=False, soft_wrap=True)
    run.out.print(
        f"  for {about['architecture']}; its hash is in {beside(out).name} too: carry it another "
        f"way, and give it to apply --bundle {out.name} --bundle-sha256",
        markup=False,
        soft_wrap=True,
    )
    run.finish(bundle={"path": str(out), "manifest_sha256": making.sha256, **about})


def _refused(run: Run, plans: Mapping[Host, NodePlan], maker: Host) -> bool:
    """Say why no bundle can be made of these nodes; whether there is a reason."""
    refusals = [one for plan in plans.values() for one in plan.refusals]
    for one in plans.values():
        lacks = differing(plans[maker], one)
        if lacks is not None:
            refusals.append(
                Refusal(
                    "BUNDLE_LACKS",
                    f"{lacks}, and {maker.name}, which would make the bundle, does not",
                    "nodes that need the same",
                    f"make one bundle for each kind of node: --limit {one.node}",
                )
            )
    for refusal in refusals:
        run.err.print(f"{refusal.code}: {refusal.seen}", markup=False, soft_wrap=True, style="red")
        run.err.print(f"  {refusal.advice}", markup=False, soft_wrap=True)
        run.exits.append(Exit.REFUSED)
    for node in plans.values() if refusals else ():
        run.documents.append(node.as_dict())
    return bool(refusals)


def _making(plan: NodePlan, lock: Lock, out: Path, *, weights: bool, images: bool) -> Making:
    made_of = ingredients(plan, lock, weights=weights, images=images)
    if isinstance(made_of, Refusal):
        raise Stop(Exit.REFUSED, f"{plan.node}: {made_of.code}: {made_of.seen}. {made_of.advice}")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Making(
        out,
        made_of,
        lambda gathered: manifest_of(made_of, gathered, lock, node=plan.node, now=now),
    )


def opened(
    run: Run, path: Path | None, sha256: str | None, wishes: Mapping[str, Wishes]
) -> Bundle | None:
    """Return the bundle of a run, or None where none was given.

    Raises Stop where it is none, not whole, not the one that was meant, or made from another lock
    than the target's own.
    """
    if path is None:
        if sha256 is not None:
            raise click.UsageError("--bundle-sha256 goes with --bundle")
        return None
    own, where = lock_of(run)
    try:
        found = open_bundle(path, sha256)
    except BundleError as error:
        raise Stop(Exit.REFUSED, str(error)) from None
    for one in wishes.values():
        contrast = other_lock(found, own, one)
        if contrast is not None:
            raise Stop(
                Exit.REFUSED,
                f"{contrast.code}: {contrast.seen} ({where}). {contrast.advice}",
            )
    run.err.print(
        f"{path}: made on {found.manifest.made_on} at {found.manifest.made_at}, "
        f"manifest sha256 {found.sha256}",
        markup=False,
        soft_wrap=True,
        style="dim",
    )
    return found


def keep_lock(run: Run, found: Bundle) -> None:
    """Write the lock that a bundle was made from beside the inventory, where there is none yet."""
    if lock_of(run)[0] is not None:
        return
    path = lock_path(run.target)
    try:
        write_lock(path, found.manifest.locked)
    except LockError as error:
        raise Stop(Exit.USAGE, str(error)) from None
    run.err.print(f"wrote {path}, from the bundle", markup=False, soft_wrap=True)


def with_bundle(options: Options, found: Bundle | None) -> Options:
    """Return the options of a run that installs from a bundle: its lock holds."""
    if found is None:
        return options
    return dataclasses.replace(options, lock=found.manifest.locked, bundle=found)
