"""The door before a node's servers, as it should be, and the programs that put it in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plans import paths
from plans.bundle import Taken
from plans.launch import TEMPLATES, PlannedFile, render
from plans.onnode import REFUSAL_MARK, base64_lines
from plans.secrets import SecretFile
from plans.wheel.environment import PlannedEnvironment

DoorAct = Literal["start", "restart", "renew", "return", "remove", "none"]


@dataclass(frozen=True)
class DoorPlan:
    """What should be true of the door on a node."""

    act: DoorAct
    key: str = ""  # of its settings, its program and its packages: 16 hexadecimal digits
    before: str = ""  # of the settings that the link leads to now, as the survey saw it
    files: tuple[PlannedFile, ...] = ()
    new: bool = False  # those files are to be written
    units: tuple[PlannedFile, ...] = ()  # to be written
    units_before: tuple[str, ...] = ()  # the checksum of each; empty where none is there
    keys: SecretFile | None = None  # to be written
    environment: PlannedEnvironment | None = None
    bundle: Taken | None = None  # what its environment is built from, and not over the network
    daemon_reload: bool = False
    enable: bool = False
    back: tuple[str, ...] = ()  # servers that a cut run left out of rotation
    wait_for: tuple[str, ...] = ()  # servers of this node
    proves: bool = False  # all its servers are here, and a pair of them is to generate
    tls: tuple[str, str] | None = None  # files of the node: the certificate, and its key
    said: str = ""  # where it listens, and for whom
    lines: tuple[str, ...] = ()  # what the plan says of it beside its changes

    @property
    def installs(self) -> bool:
        """Whether its units are put in their places, read again, or enabled."""
        return bool(self.units or self.daemon_reload or self.enable)

    @property
    def directory(self) -> str:
        """Where its files are."""
        return f"{paths.DOORS}/{self.key}"

    def as_dict(self) -> dict[str, object]:
        """Return the form in which it stands in JSON documents."""
        return {"action": self.act, "settings": self.key or None, "said": self.said}


def door_functions() -> str:
    """Return the functions by which programs on a node move a server out of and into rotation."""
    return (TEMPLATES / "door.sh").read_text(encoding="utf-8")


def prepare(plan: DoorPlan) -> str:
    """Return the program that puts the door's units in their places and enables it.

    It refuses as STALE_PLAN where a unit is not as the plan saw it.
    """
    return render(
        "door-prepare.sh.j2",
        refusal_mark=REFUSAL_MARK,
        units=[
            {"file": one, "before": before, "base64": base64_lines(one.text)}
            for one, before in zip(plan.units, plan.units_before, strict=True)
        ],
        daemon_reload=plan.daemon_reload,
    )


def switch(plan: DoorPlan) -> str:
    """Return the program that puts the settings in place, starts the door, and waits for its servers.

    It refuses as STALE_PLAN where the node is not as the plan saw it.
    """
    return render(
        "door-switch.sh.j2",
        refusal_mark=REFUSAL_MARK,
        door=door_functions(),
        doors=paths.DOORS,
        key=plan.key,
        before=plan.before,
        back=plan.back,
        act=plan.act,
        wait_for=plan.wait_for,
        proves=plan.proves,
        renew=paths.DOOR_RENEW,
        timer=paths.DOOR_TIMER,
        credentials=paths.DOOR_CREDENTIALS,
        tls=tuple(zip(("certificate", "key"), plan.tls or ("", ""), strict=True)),
        said=plan.said,
    )


def remove() -> str:
    """Return the program that takes the door away; its environment stays, as all of them do."""
    return render(
        "door-remove.sh.j2",
        unit_files=paths.DOOR_UNITS,
        renew=paths.DOOR_RENEW,
        doors=paths.DOORS,
        credentials=paths.DOOR_CREDENTIALS,
        out=paths.DOOR_OUT,
    )
