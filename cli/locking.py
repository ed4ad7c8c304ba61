"""Makes the lock, keeps it where it belongs, and says so."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pyinfra.api.host import Host

from cli.context import Run, Stop
from cli.exits import Exit
from cli.secrets import hub_token_of
from deploys.node import Options, plan_of
from locks.lockfile import LockError, read_lock, write_lock
from locks.records import Lock, kernels_key
from locks.references import ReferenceRefused
from locks.where import lock_path
from plans.plan import NodePlan
from plans.secrets import Secret
from plans.wanted import images_wanted, models_wanted
from plans.wheel.kernels import kernels_wanted
from plans.wishes import Wishes


def lock_of(run: Run) -> tuple[Lock | None, Path]:
    """Return the target's lock, or None where there is none, and where it is kept.

    Raises Stop where the file is no good.
    """
    path = lock_path(run.target)
    try:
        return read_lock(path), path
    except LockError as error:
        raise Stop(Exit.USAGE, str(error)) from None


def with_lock(
    run: Run,
    plans: Mapping[Host, NodePlan],
    wishes: Mapping[str, Wishes],
    options: Options,
) -> tuple[dict[Host, NodePlan], Lock | None]:
    """Return the plans once more where they need what the lock does not have, and that lock.

    Only then registry, hub and FlashInfer's index are asked: which images are needed depends on
    what the nodes are. No node is asked twice. ``wishes`` are by node. Raises Stop.
    """
    if not _incomplete(options.lock, plans.values(), wishes):
        return dict(plans), options.lock
    run.err.print("the lock does not have all that is needed: asking registry and hub", style="dim")
    token = hub_token_of(run, options.secrets)
    lock = made_lock(run, wishes.values(), options.lock, refresh=False, hub_token=token)
    again = replace(options, lock=lock)
    made = {}
    for host, plan in plans.items():
        assert plan.survey is not None
        made[host] = plan_of(plan.survey, wishes[host.name], again, now=time.time())
    return made, lock


def _incomplete(lock: Lock | None, plans: Iterable[NodePlan], wishes: Mapping[str, Wishes]) -> bool:
    """Say whether plans that were made with this lock need something that it does not have."""
    several = [one for one in plans if not one.refused]
    wheels = [wishes[one.node] for one in several if one.decision == "wheel"]
    kernels = [kernels_key(*one) for one in kernels_wanted(wheels)]
    return any(one.unresolved for one in several) or any(
        lock is None or (key not in lock.kernels and not _waits(lock, key, wheels))
        for key in kernels
    )


def _waits(lock: Lock, key: str, several: Iterable[Wishes]) -> bool:
    """Say whether FlashInfer's kernels, which a node does without, wait for `lock` to be run.

    They were asked for once, and are unresolved; an index that is named since is asked at once.
    """
    why = lock.why_not(key)
    named = any(one.mirrors.flashinfer for one in several)
    return why is not None and not (why.code == "KERNEL_INDEX_UNKNOWN" and named)


def made_lock(
    run: Run,
    wishes: Iterable[Wishes],
    existing: Lock | None,
    *,
    refresh: bool,
    hub_token: Secret | None = None,
) -> Lock:
    """Ask registry and hub for what these wishes need, and write the lock. Raises Stop."""
    # Not above: their clients take long to import, and a lock that has all is the rule.
    from locks.hub import HubOptions, ModelRefused
    from locks.kernels import KernelOptions
    from locks.make import ImageRequest, KernelRequest, ModelRequest, make_lock
    from locks.registry import MirrorRefused, RegistryOptions

    several = list(wishes)
    path = lock_path(run.target)
    options = RegistryOptions(
        mirrors={k: v for one in several for k, v in one.registry.mirrors.items()},
        insecure=frozenset(host for one in several for host in one.registry.insecure),
    )
    try:
        lock = make_lock(
            [ImageRequest(tag) for tag in images_wanted(several)],
            [ModelRequest(repo, revision) for repo, revision in models_wanted(several)],
            now=datetime.now(UTC).isoformat(timespec="seconds"),
            existing=existing,
            registry_options=options,
            # One lock has one hub: what stands first in the inventory.
            hub_options=HubOptions(
                next((one.hub.endpoint for one in several if one.hub.endpoint), None),
                hub_token.reveal() if hub_token else None,
            ),
            kernels=[KernelRequest(*one) for one in kernels_wanted(several)],
            kernel_options=KernelOptions(
                next((one.mirrors.flashinfer for one in several if one.mirrors.flashinfer), None)
            ),
            progress=lambda line: run.err.print(line, markup=False, soft_wrap=True, style="dim"),
            refresh=refresh,
            # A run over some of the nodes must not drop what the others need.
            prune=run.chosen is None,
        )
        changed = write_lock(path, lock)
    except (ReferenceRefused, ModelRefused, MirrorRefused, LockError) as error:
        raise Stop(Exit.USAGE, str(error)) from None
    run.err.print(f"{'wrote' if changed else 'unchanged:'} {path}", markup=False, soft_wrap=True)
    return lock
