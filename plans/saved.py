"""A plan kept in a file, to be read by people first and applied later.

It holds what the plan was made from on the controller (wishes and lock), and
what it promised. It is applied by making the plan anew from what the node is
by then: where that promises something else, the kept one is stale.

What may be private is not in it: a secret's source is, and an environment's
names are; their values are read again where they were read first. So are the hooks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from locks.records import Lock
from plans.hooks import Hooks
from plans.plan import NodePlan
from plans.wishes import Wishes, WishesError, read_wishes

SCHEMA: Final = 1

MADE_BY = "sglang-node plan --out FILE"


class SavedPlanError(Exception):
    """A file that holds no plan which can be applied; the text says why and what to do."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Promise(_Record):
    """What the plan of one node was made from, and what it came to."""

    wishes: dict[str, Any]
    environment: dict[str, tuple[str, ...]]  # names of each service's own variables
    hooks: bool  # whether it had any: they are the inventory's of by then
    discard_edits: bool
    allow_daemon_reload: bool
    changes: tuple[str, ...]  # what people read: a stale plan is told by them
    deployments: dict[str, int]  # by service, the number that it was to run
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")  # of everything that apply would do
    refused: bool


class SavedPlan(_Record):
    """A file of ``plan --out``. ``nodes`` is the document that ``plan --json`` prints."""

    schema_version: Literal[1] = SCHEMA
    toolkit: str
    nodes: list[dict[str, Any]]
    promises: dict[str, Promise]
    lock: dict[str, Any] | None

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        named = {str(one.get("node")) for one in self.nodes}
        if strange := set(self.promises) - named:
            raise ValueError(f"promises of nodes that have no plan: {', '.join(sorted(strange))}")
        return self

    def lock_of(self) -> Lock | None:
        """Return the lock that the plan was made with. Raises SavedPlanError."""
        try:
            return None if self.lock is None else Lock.model_validate(self.lock)
        except ValidationError:
            raise SavedPlanError("the lock in it is no lock") from None

    def wishes_of(self, now: Mapping[str, Wishes]) -> dict[str, Wishes]:
        """Return the wishes that it was made from, by node.

        ``now``: what the inventory says by now, for the environment and the hooks. Raises SavedPlanError.
        """
        found = {}
        for node, one in self.promises.items():
            try:
                wishes = read_wishes(one.wishes, node)
            except WishesError as error:
                raise SavedPlanError("; ".join(error.messages)) from None
            there = {s.name: s.environment for s in now[node].services} if node in now else {}
            services = []
            for service in wishes.services:
                names = one.environment.get(service.name, ())
                values = there.get(service.name, {})
                if missing := [name for name in names if name not in values]:
                    raise SavedPlanError(
                        f"{node}: a kept plan holds no values of environment, and the inventory "
                        f"no longer has {', '.join(missing)} of {service.name}"
                    )
                own = {name: values[name] for name in names}
                services.append(service.model_copy(update={"environment": own}))
            update: dict[str, Any] = {"services": tuple(services)}
            if one.hooks:
                if node not in now or now[node].hooks == Hooks():
                    raise SavedPlanError(
                        f"{node}: a kept plan holds no hooks, and the inventory no longer has any"
                    )
                update["hooks"] = now[node].hooks
            found[node] = wishes.model_copy(update=update)
        return found


def saved_plan(
    plans: Iterable[NodePlan],
    wishes: Mapping[str, Wishes],
    lock: Lock | None,
    documents: list[dict[str, Any]],
    version: str,
    *,
    discard_edits: bool = False,
    allow_daemon_reload: bool = False,
) -> str:
    """Return the text of the file: plans as they were shown, and what is needed to apply them.

    The last two are the operator's words that the plans were made with.
    """
    saved = SavedPlan(
        toolkit=version,
        nodes=documents,
        promises={
            plan.node: Promise(
                wishes=_without_private(wishes[plan.node]),
                environment={s.name: tuple(s.environment) for s in wishes[plan.node].services},
                hooks=wishes[plan.node].hooks != Hooks(),
                discard_edits=discard_edits,
                allow_daemon_reload=allow_daemon_reload,
                changes=_changes(plan),
                deployments={one.name: one.number for one in plan.services},
                digest=digest(plan),
                refused=plan.refused,
            )
            for plan in plans
        },
        lock=None if lock is None else lock.to_json(),
    )
    return json.dumps(saved.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n"


def read_saved(text: str, version: str) -> SavedPlan:
    """Return the plan that a file holds. ``version`` is the toolkit's.

    Raises SavedPlanError where it holds none, or was made by another version:
    the texts that a deployment is made of differ between versions.
    """
    try:
        saved = SavedPlan.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise SavedPlanError(
            f"it is no plan that can be applied: {where}: {first['msg']} (made by: {MADE_BY})"
        ) from None
    if saved.toolkit != version:
        raise SavedPlanError(
            f"it was made by version {saved.toolkit} of the toolkit, and this is {version}: "
            f"plan again: {MADE_BY}"
        )
    saved.lock_of()
    return saved


def _without_private(wishes: Wishes) -> dict[str, Any]:
    document = wishes.model_dump(mode="json", exclude_unset=True)
    document.pop("hooks", None)
    for service in document["services"]:
        service.pop("environment", None)
    return document


def stale(promise: Promise, now: NodePlan) -> str | None:
    """Say in a sentence how the plan made now differs from the kept one; None: it does not.

    A node that is already as it should be is not stale: it was applied before.
    """
    if now.refused:
        return None
    if now.converged:
        there = {one.name: one.number for one in now.services}
        behind = [f"{k} of {n}" for n, k in promise.deployments.items() if there.get(n, 0) < k]
        if not behind:
            return None
        return f"nothing is to be changed now, and the plan promised deployment {', '.join(behind)}"
    if promise.refused:
        return "the saved plan refused this node; now it could be changed"
    if promise.digest == digest(now):
        return None
    before, after = set(promise.changes), set(_changes(now))
    parts = [
        *(f"no longer: {one}" for one in promise.changes if one not in after),
        *(f"now also: {one}" for one in _changes(now) if one not in before),
    ]
    return "; ".join(parts) or "the same changes would write other texts now"


def digest(plan: NodePlan) -> str:
    """Return the SHA-256 of everything that apply would do on a node, hexadecimal."""
    does: list[dict[str, Any]] = [
        {
            "service": one.name,
            "deployment": one.number,
            "files": {file.path: [file.mode, file.sha256] for file in one.files},
            "replaces": [file.path for file in one.replaced],
            "removes": list(one.removed),
            "pull": one.pull,
            "environment": one.environment.key if one.environment else None,
            "daemon_reload": one.daemon_reload,
            "enable": one.enable,
            "stop_first": one.stop_first,
            "act": one.act,
        }
        for one in plan.services
    ]
    if plan.door is not None:
        does.append(
            {
                "door": plan.door.as_dict(),
                "files": {file.path: [file.mode, file.sha256] for file in plan.door.files},
                "environment": plan.door.environment.key if plan.door.environment else None,
                "back": list(plan.door.back),
            }
        )
    text = json.dumps([does, _changes(plan), plan.refused, plan.unresolved], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _changes(plan: NodePlan) -> tuple[str, ...]:
    return tuple(
        f"{change.service + ': ' if change.service else ''}{change.kind} {change.what}"
        for change in plan.changes
    )
