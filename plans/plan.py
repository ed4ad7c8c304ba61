"""The plan: what should be true of a node and why, and the changes against the survey.

Pure: the same survey, wishes and lock give the same plan. ``apply`` executes
the plan object itself, so the plan cannot say one thing and apply do another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from facts.records import Survey
from locks.records import LockedFile
from plans import paths
from plans.decision import Decision
from plans.deployment import Launch, PlannedFile
from plans.fit import Fit
from plans.refusals import Caution, Refusal
from plans.secrets import SecretFile

ChangeKind = Literal[
    "image",
    "weights",
    "credential",
    "deployment",
    "unit",
    "drop-in",
    "daemon-reload",
    "enable",
    "start",
    "restart",
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
    pull: str | None = None  # image to fetch, by digest
    weights: Weights | None = None  # of a hub model
    daemon_reload: bool = False
    enable: bool = False
    stop_first: bool = False  # before systemd reloads: its container would lose its GPUs by that
    act: Act = "none"
    guard: Guard | None = None
    ready: bool = False  # it runs as planned, and answered the survey
    fit: Fit | None = None


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
    survey: Survey | None = field(default=None, repr=False, compare=False)

    @property
    def refused(self) -> bool:
        """Whether nothing may be changed on this node."""
        return bool(self.refusals)

    @property
    def converged(self) -> bool:
        """Whether the node is as it should be: nothing to change, every service ready."""
        return not (self.refusals or self.changes or self.unresolved or self.unread)

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
                    "image": one.launch.image if one.launch else one.decision.image,
                    "gpus": [gpu.index for gpu in one.decision.gpus],
                    "action": one.act,
                    "ready": one.ready,
                }
                for one in self.services
            ],
        }
