"""The plan: what should be true of a node and why, and the changes against the survey.

Pure: the same survey, wishes and lock give the same plan. ``apply`` executes
the plan object itself, so the plan cannot say one thing and apply do another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from facts.records import Survey
from locks.records import LockedFile
from plans import paths
from plans.bundle import Taken
from plans.decision import Decision
from plans.deployment import Launch, PlannedFile
from plans.fit import Fit
from plans.refusals import Caution, Refusal
from plans.secrets import SecretFile
from plans.wishes import Service

if TYPE_CHECKING:  # planning an environment takes findings, and those take this
    from plans.ahead import Ahead, Kernels
    from plans.door import DoorPlan
    from plans.wheel.environment import PlannedEnvironment

ChangeKind = Literal[
    "image",
    "weights",
    "packages",
    "environment",
    "credential",
    "deployment",
    "unit",
    "drop-in",
    "removed file",
    "door",
    "daemon-reload",
    "enable",
    "start",
    "restart",
    "renew",
    "verify",
]

Act = Literal["start", "restart", "wait", "verify", "none"]
"""What is done with the unit once everything else is in place."""


@dataclass(frozen=True)
class Change:
    """One thing that apply does, and why."""

    kind: ChangeKind
    what: str
    why: str
    service: str | None = None
    diff: str = ""  # unified, where a text changes

    def as_dict(self) -> dict[str, str]:
        """Return the form in which it stands in JSON documents, without the diff."""
        found = {"kind": self.kind, "what": self.what, "why": self.why}
        if self.service is not None:
            found["service"] = self.service
        return found


@dataclass(frozen=True)
class Guard:
    """What the plan was made from: compared on the node just before the switch."""

    current: int | None  # deployment
    main_pid: int
    invocation: str
    sums: Mapping[str, str]  # path -> SHA-256 of what will be replaced, "absent" where nothing is
    port_free: int | None  # a port that nobody may have taken meanwhile
    # Whether main process and invocation are compared: what starts and fails again and again
    # has others by the time that its mend is switched to.
    steady: bool = True


@dataclass(frozen=True)
class Weights:
    """A hub model's files on a node."""

    repo: str
    commit: str
    home: str  # HF_HOME
    files: tuple[LockedFile, ...]
    fetch: bool  # something is missing, has changed, or was never checked

    @property
    def directory(self) -> str:
        """Where the server reads them."""
        return paths.snapshot(self.home, self.repo, self.commit)

    @property
    def mark(self) -> str:
        """The file that says which of them were found good."""
        return paths.weights_mark(self.home, self.repo, self.commit)


@dataclass(frozen=True)
class ServicePlan:
    """What should be true of one service."""

    name: str
    decision: Decision
    launch: Launch | None = None  # None: refused, or the lock does not have its image yet
    number: int = 0  # of the deployment that it should run
    files: tuple[PlannedFile, ...] = ()  # of that deployment, the plan itself included
    new_deployment: bool = False
    key_file: SecretFile | None = None  # to write with the deployment
    drop_in: PlannedFile | None = None  # None: as it should be
    unit: PlannedFile | None = None
    devices_unit: PlannedFile | None = None  # of the wheel runtime
    removed: tuple[str, ...] = ()  # files that another runtime left, to take away
    other_runtime: bool = False  # it was last deployed with another one
    pull: str | None = None  # image to fetch, by digest
    environment: PlannedEnvironment | None = None  # of the wheel runtime
    weights: Weights | None = None  # of a hub model
    bundle: Taken | None = None  # what comes from a bundle, and not over the network
    daemon_reload: bool = False
    enable: bool = False
    stop_first: bool = False  # before systemd reloads: its container would lose its GPUs by that
    act: Act = "none"
    guard: Guard | None = None
    ready: bool = False  # it runs as planned, and answered the survey
    fit: Fit | None = None
    meaning: tuple[str, ...] = ()  # of a change of release
    ahead: Ahead | None = None  # kernels that are compiled before the switch
    kernels: Kernels | None = None  # what the deployment's first start finds in its cache

    @property
    def service(self) -> Service | None:
        """What the operator wants of it; None where it is refused, or the lock lacks its image."""
        return self.launch.service if self.launch else None

    @property
    def replaced(self) -> tuple[PlannedFile, ...]:
        """The files outside of the deployment that the switch puts in their places."""
        files = (self.unit, self.devices_unit, self.drop_in)
        return tuple(file for file in files if file is not None)

    @property
    def image(self) -> str | None:
        """The image that it runs, or could run; None for the wheel runtime."""
        if self.launch is not None:
            return self.launch.image or None
        return self.decision.image


@dataclass(frozen=True)
class NodePlan:
    """What should be true of one node, and the changes; or all the reasons against it."""

    node: str
    decision: Literal["image", "wheel", "refused"]
    release: str | None
    image: str | None
    services: tuple[ServicePlan, ...]
    refusals: tuple[Refusal, ...] = ()
    cautions: tuple[Caution, ...] = ()
    reasons: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    unresolved: tuple[str, ...] = ()  # what the lock does not have yet
    hub_token: tuple[SecretFile, ...] | None = None  # to write; () takes it away, None leaves it
    unread: tuple[str, ...] = ()  # secrets that the controller could not read
    door: DoorPlan | None = None  # before its servers; None: there shall be none, and is none
    survey: Survey | None = field(default=None, repr=False, compare=False)

    @property
    def refused(self) -> bool:
        """Whether nothing may be changed on this node."""
        return bool(self.refusals)

    @property
    def converged(self) -> bool:
        """Whether the node is as it should be: nothing to change, every service ready."""
        return not (self.refusals or self.changes or self.unresolved or self.unread)

    def of_some(self) -> NodePlan:
        """Return the plan of a run for some services: that others are deployed is no matter of it."""
        there = tuple(one for one in self.cautions if one.code != "SERVICE_LEFT")
        return replace(self, cautions=there)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan's JSON form; its names are a contract (README, "Scripts")."""
        return {
            "node": self.node,
            "decision": self.decision,
            "release": self.release,
            "image": self.image,
            "refusals": [refusal.as_dict() for refusal in self.refusals],
            "cautions": [caution.as_dict() for caution in self.cautions],
            "reasons": list(self.reasons),
            "changes": [change.as_dict() for change in self.changes],
            "unresolved": list(self.unresolved),
            "services": [
                {
                    "name": one.name,
                    "deployment": one.number or None,
                    "release": one.decision.release,
                    "image": one.image,
                    "environment": one.environment.key if one.environment else None,
                    "gpus": [gpu.index for gpu in one.decision.gpus],
                    "action": one.act,
                    "ready": one.ready,
                }
                for one in self.services
            ],
            **({"door": self.door.as_dict()} if self.door is not None else {}),
        }
