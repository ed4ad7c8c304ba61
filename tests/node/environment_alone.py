"""A deploy under plain pyinfra that makes the environments of a node's plan, and nothing else."""

from __future__ import annotations

from pyinfra.context import host

from deploys.plain import plan_under_pyinfra
from operations import apply, environment

plan = plan_under_pyinfra(host)
for one in plan.services if plan is not None else ():
    environment.present(plan=one, name=f"Make the environment of {one.name}")
if plan is not None:
    apply.released(name="Give the apply lock back")
