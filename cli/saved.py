"""Plans kept in a file: ``plan --out FILE`` writes it, ``apply --plan FILE`` applies it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from cli.context import Run, Stop
from cli.exits import Exit
from cli.keep import write_private
from deploys.node import Options
from plans.plan import NodePlan
from plans.refusals import Refusal
from plans.saved import SavedPlan, SavedPlanError, read_saved, saved_plan, stale
from plans.secrets import NodeSecrets
from plans.version import VERSION
from plans.wishes import Wishes

MAX_BYTES = 256 * 1024 * 1024
"""Far above any real plan: a node's takes some 10 kB, a lock's model of 1000 files 200 kB."""


def keep(
    run: Run,
    out: Path,
    plans: list[NodePlan],
    wishes: Mapping[str, Wishes],
    options: Options,
) -> None:
    """Write the plans of a run where its owner alone reads them. Raises NotWritten."""
    text = saved_plan(
        plans,
        wishes,
        options.lock,
        run.documents,
        VERSION,
        discard_edits=options.discard_edits,
        allow_daemon_reload=options.allow_daemon_reload,
    )
    write_private(out, text)
    if any(plan.unresolved for plan in plans):
        run.err.print(
            f"kept in {out}, to be read: it cannot be applied before the lock is made "
            f"(sglang-node lock {run.target}) and the plan kept again",
            markup=False,
            soft_wrap=True,
        )
        return
    run.err.print(
        f"kept in {out}: sglang-node apply {run.target} --plan {out}", markup=False, soft_wrap=True
    )


def load(run: Run, path: Path, *, words: bool) -> SavedPlan:
    """Return a saved plan, the run narrowed to its nodes. Raises Stop where it is no good.

    ``words`` says whether the operator's words were given beside it: the plan alone has them.
    """
    if run.data is not None or words:
        raise Stop(
            Exit.USAGE,
            f"{path} says itself what shall be so: give it alone, or plan again with those options",
        )
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SavedPlanError("it is longer than any plan")
        saved = read_saved(path.read_text(encoding="utf-8"), VERSION)
    except OSError as error:
        raise Stop(Exit.USAGE, f"{path} cannot be read: {error.strerror}") from None
    except (SavedPlanError, UnicodeDecodeError) as error:
        raise Stop(Exit.USAGE, f"{path}: {error}") from None
    there = [host.name for host in run.inventory]
    if strange := [node for node in saved.promises if node not in there]:
        raise Stop(
            Exit.USAGE,
            f"{path} plans {', '.join(strange)}, which {run.target} does not have: "
            f"it has {', '.join(there)}",
        )
    names = there if run.chosen is None else [host.name for host in run.chosen]
    run.exclude = ()
    run.limit = tuple(name for name in names if name in saved.promises)
    if not run.limit:
        raise Stop(Exit.USAGE, f"{path} has no plan of {', '.join(names)}")
    return saved


def wishes_of(run: Run, saved: SavedPlan) -> dict[str, Wishes]:
    """Return the wishes of a saved plan, environment and hooks from the inventory."""
    own = any(one.hooks or any(one.environment.values()) for one in saved.promises.values())
    try:
        return saved.wishes_of(run.wishes() if own else {})
    except SavedPlanError as error:
        raise Stop(Exit.USAGE, str(error)) from None


def options_of(saved: SavedPlan, node: str, secrets: Mapping[str, NodeSecrets]) -> Options:
    """Return the lock and the operator's words that a node's saved plan was made with.

    ``secrets`` are read anew: a plan that is kept holds none.
    """
    promise = saved.promises[node]
    return Options(saved.lock_of(), promise.discard_edits, promise.allow_daemon_reload, secrets)


def still_so(saved: SavedPlan, now: NodePlan) -> NodePlan:
    """Return the plan made now, refused where it is not what the saved one promised."""
    sentence = stale(saved.promises[now.node], now)
    if sentence is None:
        return now
    refusal = Refusal(
        "STALE_PLAN",
        f"the node has changed since the plan was kept: {sentence}",
        "the node as the plan saw it",
        "read a new plan: sglang-node plan --out FILE, then sglang-node apply --plan FILE",
    )
    return dataclasses.replace(now, decision="refused", refusals=(refusal,), changes=())
