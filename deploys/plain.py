"""The plan under plain pyinfra, which tells a deploy everything but the path of its inventory."""

from __future__ import annotations

import sys
from itertools import takewhile
from pathlib import Path

from pyinfra import logger
from pyinfra.api.host import Host

from deploys.fleetdoors import DATA_KEY
from deploys.node import Options, fail, plan_node, refuse, unresolved_refusals, wishes_of
from deploys.secrets import Reader, read_secrets
from deploys.wheel_locks import with_own_locks
from locks.lockfile import LockError, read_lock
from locks.where import lock_path
from plans.plan import NodePlan
from plans.wishes import WishesError


def target_of_pyinfra() -> str | None:
    """Return the inventory that pyinfra was called with, or None where it was not.

    pyinfra tells a deploy everything but the path of its inventory, so that is
    looked up among its own arguments.
    """
    # The inventory stands before the deploy; options with a value may stand before it.
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    here = Path(__file__).resolve().parent
    before = list(takewhile(lambda word: Path(word).resolve().parent != here, words))
    named = [word for word in before if Path(word).is_file() or word.startswith("@")]
    return next(iter(named or before[-1:]), None)


_reader = Reader(logger.warning)


def plan_under_pyinfra(host: Host) -> NodePlan | None:
    """Return the plan that ``deploys/bootstrap.py`` applies,
    or None: the node is then marked."""
    try:
        wishes = wishes_of(host)
        target = target_of_pyinfra()
        wishes = wishes and with_own_locks(wishes, host.name, target)
        lock = read_lock(lock_path(target)) if target else None
    except WishesError as error:
        for message in error.messages:
            fail(host, message)
        return None
    except LockError as error:
        fail(host, str(error))
        return None
    if wishes is not None and any(one.nodes for one in wishes.services):
        fail(host, "a service over several nodes: sglang-node apply INVENTORY plans them as one")
        return None
    if wishes is None:
        fail(host, f"no data under the key {DATA_KEY!r}: see inventories/example.py")
        return None
    secrets = read_secrets(_reader, wishes)
    for sentence in secrets.unread:
        fail(host, sentence)
    if secrets.unread:
        return None
    plan = plan_node(host, wishes, Options(lock, secrets={host.name: secrets}))
    if plan is None:
        return None
    if plan.refusals:
        refuse(host, plan.refusals)
        return None
    if plan.unresolved:
        refuse(host, unresolved_refusals(plan, target))
        return None
    return plan
