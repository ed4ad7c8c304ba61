"""What one runtime would give a service: compared where the runtime is left to the toolkit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from facts.records import ServiceState, Survey
from plans.decision import GpuAccess
from plans.hostdata import Runtime
from plans.picking import Picked
from plans.refusals import Caution, Refusal

IN_LAUNCH: dict[Runtime, str] = {"image": "SGLANG_IMAGE", "wheel": "SGLANG_ENVIRONMENT"}
"""The key of a deployment's launch.env that only one runtime has."""


@dataclass(frozen=True)
class Choice:
    """A runtime with what it gives: release and GPUs, or every reason it gives nothing."""

    runtime: Runtime
    release: str | None  # that is taken, or that was named and is known
    picked: Picked
    refusals: tuple[Refusal, ...] = ()  # of this runtime and of the GPUs with it
    cautions: tuple[Caution, ...] = ()
    reasons: tuple[str, ...] = ()
    access: GpuAccess | None = None
    asked: tuple[Refusal, ...] = ()  # of the refusals: those of what the inventory asks for

    @property
    def works(self) -> bool:
        """Whether nothing of its own refuses it."""
        return not self.refusals

    @property
    def needs(self) -> str:
        """Return in one line what it would need: each refusal's code and need."""
        return needs(self.refusals)


def needs(refusals: Iterable[Refusal]) -> str:
    """Return in one line what refusals ask for."""
    return "; ".join(dict.fromkeys(f"{one.needed} ({one.code})" for one in refusals))


def deployed_in(survey: Survey, name: str) -> Runtime | None:
    """Return the runtime in which a service is deployed on the node; None where it is not."""
    launch = survey.services.get(name, ServiceState(name)).launch
    return next((runtime for runtime, key in IN_LAUNCH.items() if launch.get(key)), None)


def choose(
    image: Choice,
    wheel: Choice,
    deployed: Runtime | None,
    passing: Iterable[str],
    *,
    own_lock: bool = False,
) -> tuple[Choice, list[str]]:
    """Return which runtime ``auto`` takes, and the sentences that say why.

    ``deployed`` is the runtime that the service has on the node: it is kept while it can still
    work, and through refusals that pass (``passing``: codes), so that no service changes its
    runtime because Docker was down for a minute. Else the image where it works, else the wheel
    where that works. Where neither does the image's refusals are told; but what the inventory
    asks for and no runtime has is told alone, and the fault of a lock that the inventory names
    (``own_lock``) before what the image would need: to install Docker would mend neither.
    """
    both = {"image": image, "wheel": wheel}
    if deployed is not None:
        kept, other = both[deployed], image if deployed == "wheel" else wheel
        passes = all(one.code in set(passing) for one in kept.refusals)
        if kept.works or passes:
            why = f"runtime {deployed}: {_deployed(deployed)}, and auto keeps it"
            if not kept.works:
                why += f", though it needs {kept.needs}: that may pass"
            return kept, [why, _other(other)]
        if deployed == "wheel" and own_lock and wheel.asked:
            # A slip in the inventory is no reason to change the runtime of what runs.
            return wheel, [f"runtime wheel: {_deployed('wheel')}, from a wheel_lock", _other(image)]
        if other.works:
            return other, [
                f"runtime {other.runtime}: {_deployed(deployed)}, which cannot work any more",
                _other(kept),
            ]
    if image.works:
        return image, [
            "runtime image: auto takes the image where Docker and the NVIDIA toolkit are whole; "
            "it brings its own CUDA",
            _other(wheel),
        ]
    if wheel.works:
        return wheel, [
            "runtime wheel: auto takes the packages, as the image cannot run here",
            _other(image),
        ]
    if any(one in wheel.asked for one in image.asked):
        both_say = tuple(one for one in image.refusals if one in wheel.refusals)
        return replace(image, refusals=both_say), []
    if own_lock and wheel.asked:
        return wheel, ["runtime wheel: the inventory names a wheel_lock", _other(image)]
    return image, [_other(wheel)]


def _deployed(runtime: Runtime) -> str:
    return f"the service is deployed in the runtime {runtime}"


def _other(choice: Choice) -> str:
    if choice.works:
        return f"runtime {choice.runtime} would work as well: write `runtime: {choice.runtime}`"
    return f"runtime {choice.runtime} would need {choice.needs}"
