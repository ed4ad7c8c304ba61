"""Collects on one node: asks what it keeps, decides, and registers what takes it away."""

from __future__ import annotations

from pyinfra.api.host import Host

from deploys.node import fail, wishes_of
from facts.stock import StockRequest, read_stock
from operations import apply, collection
from plans import paths
from plans.collection import Collection, Policy, collect
from plans.stock import StockError, read_stock_lines
from plans.wheel.tools import uv_path
from plans.wishes import Collect, WishesError

REQUEST = StockRequest(
    deployments=paths.DEPLOYMENTS,
    launch=paths.LAUNCH_ENV,
    doors=paths.DOORS,
    environments=paths.ENVIRONMENTS,
    pythons=paths.PYTHONS,
    tools=paths.TOOLS,
    caches=paths.CACHES,
    packages=paths.PACKAGE_CACHE,
    account=paths.USER,
)


def collection_of(host: Host, keep: int | None, older_than: int | None) -> Collection | None:
    """Return what goes of what a node keeps, or None: the node is then marked as failed.

    ``keep`` deployments of each service stay, and what was of use within ``older_than`` seconds;
    None is what the inventory has, or the default.
    """
    try:
        wishes = wishes_of(host)
    except WishesError as error:
        for message in error.messages:
            fail(host, message)
        return None
    asked = wishes.collect if wishes else Collect()
    seconds = int(asked.older_than_days * 86400) if older_than is None else older_than
    policy = Policy(asked.keep if keep is None else keep, seconds)
    try:
        stock = read_stock_lines(read_stock(host, REQUEST))
    except StockError as error:
        fail(host, str(error))
        return None
    return collect(stock, policy, uv_path())


def collect_on(found: Collection) -> None:
    """Register the operations that take a collection away."""
    collection.collected(collection=found, name="Collect")
    apply.released(name="Give the apply lock back")
