"""Makes every node of an inventory serve what its data ask for.

    pyinfra inventories/site.py deploys/bootstrap.py

The lock beside the inventory must be made before: sglang-node lock inventories/site.py
"""

from pyinfra import host

from deploys.node import apply_plan
from deploys.plain import plan_under_pyinfra

plan = plan_under_pyinfra(host)
if plan is not None:
    apply_plan(plan)
