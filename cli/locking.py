"""Makes the lock, keeps it where it belongs, and says so."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from cli.context import Run, Stop
from cli.exits import Exit
from locks.hub import HubOptions, ModelRefused
from locks.lockfile import LockError, read_lock, write_lock
from locks.make import ImageRequest, ModelRequest, make_lock
from locks.records import Lock
from locks.references import ReferenceRefused
from locks.registry import MirrorRefused, RegistryOptions
from locks.where import lock_path
from plans.secrets import Secret
from plans.wanted import images_wanted, models_wanted
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


def incomplete(lock: Lock | None, wishes: Iterable[Wishes]) -> bool:
    """Say whether something that these wishes may come to is not in the lock."""
    several = list(wishes)
    if lock is None:
        return True
    return any(lock.image(tag) is None for tag in images_wanted(several)) or any(
        lock.model(repo, revision) is None for repo, revision in models_wanted(several)
    )


def made_lock(
    run: Run,
    wishes: Iterable[Wishes],
    existing: Lock | None,
    *,
    refresh: bool,
    hub_token: Secret | None = None,
) -> Lock:
    """Ask registry and hub for what these wishes need, and write the lock. Raises Stop."""
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
            progress=lambda line: run.err.print(line, markup=False, soft_wrap=True, style="dim"),
            refresh=refresh,
            # A run over some of the nodes must not drop what the others need.
            prune=not run.limit,
            target=run.target,
        )
        changed = write_lock(path, lock)
    except (ReferenceRefused, ModelRefused, MirrorRefused, LockError) as error:
        raise Stop(Exit.USAGE, str(error)) from None
    run.err.print(f"{'wrote' if changed else 'unchanged:'} {path}", markup=False, soft_wrap=True)
    return lock
