"""Which GPUs a service uses with which of the offers of a runtime, or why with none.

For each GPU and offer the first rule that names them decides (``plans.rules``).
An offer is taken where it runs on every GPU that the service uses.
"""

from __future__ import annotations

from dataclasses import dataclass

from facts.records import Survey, known
from plans.decision import LeftOut
from plans.gpus import (
    Chosen,
    Wanted,
    called,
    capability_of,
    cautions_of,
    gpu_class,
    gpus_needed,
    wanted_gpus,
)
from plans.hostdata import Runtime, at_least, command, commands
from plans.hosts import smi_failed
from plans.images import Offer, known_images, known_releases
from plans.refusals import Caution, Refusal
from plans.rules import Case, Verdict, branch_of, judge, threshold
from plans.wheel.offers import known_wheels
from plans.wishes import Service, Wishes
from releases.wheels.records import ARCHITECTURES

WORDS: dict[Runtime, tuple[str, str]] = {
    "image": ("image has", "No image"),
    "wheel": ("packages have", "No packages"),
}
"""How texts speak of the offers of a runtime."""

DRIVER_CODES = ("DRIVER_TOO_OLD", "TOOLKIT_TOO_OLD", "WSL_DRIVER_TOO_OLD")
"""Refusals of a newer image that a newer driver (or toolkit) would take away."""


@dataclass(frozen=True)
class Picked:
    """The offer that is taken and the GPUs that are used, or why there are none."""

    offer: Offer | None = None
    used: tuple[Chosen, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    cautions: tuple[Caution, ...] = ()
    reasons: tuple[str, ...] = ()
    frozen: str | None = None
    override: bool = False


def known_offers(like: Offer) -> tuple[Offer, ...]:
    """Return everything that the runtime of an offer has, for every CPU architecture."""
    if like.runtime == "image":
        return known_images()
    return tuple(one for architecture in ARCHITECTURES for one in known_wheels(architecture))


def pick(survey: Survey, service: Service, wishes: Wishes, offers: tuple[Offer, ...]) -> Picked:
    """Return the offer and the GPUs that a service gets of these offers, the first that runs."""
    if smi_failed(survey) or survey.host.vgpu_host or not survey.nvidia.gpus:
        return Picked()
    wanted = wanted_gpus(survey, service)
    refusals = list(wanted.refusals)
    needed = gpus_needed(service)
    everything = service.gpus == "all"
    if everything and not wanted.usable:
        refusals.append(_none_usable(wanted, service))
    # Of GPUs that cannot be used now (MIG without a name, a fault) the image is still told.
    pool = wanted.usable or tuple(Chosen(gpu) for gpu in wanted.all_gpus)
    considered = pool if everything else pool[:needed]

    def runs(one: Chosen, offer: Offer) -> bool:
        return _judge(survey, wishes, one, offer).runs

    serving = {offer.tag: tuple(one for one in considered if runs(one, offer)) for offer in offers}
    least = min(needed, len(considered)) if everything else len(considered)
    offer = next((one for one in offers if len(serving[one.tag]) >= max(1, least)), None)
    if offer is None and everything:
        offer = max(offers, key=lambda one: len(serving[one.tag]), default=None)
        if offer is not None and not serving[offer.tag]:
            offer = None
    if offer is None:
        if considered and offers:
            refusals += _nothing_runs(survey, service, wishes, considered, offers)
        return Picked(
            left_out=_left_out(wanted, (), {}),
            refusals=tuple(refusals),
        )
    able = serving[offer.tag] if wanted.usable else ()
    used = able[:needed]
    if wanted.usable and len(used) < needed and not wanted.refusals:
        refusals.append(_too_few(service, needed, able, wanted, survey))
    verdicts = [_judge(survey, wishes, one, offer) for one in used or serving[offer.tag]]
    why = {
        one.gpu.index: _judge(survey, wishes, one, offer).seen
        for one in considered
        if one not in serving[offer.tag]
    }
    cautions = [
        Caution(code, text, service.name) for verdict in verdicts for code, text in verdict.cautions
    ]
    cautions += cautions_of(used, survey, service.name)
    cautions += _same_branch(survey, used, offer, service.name)
    reasons = list(dict.fromkeys(verdict.reason for verdict in verdicts))
    if used:
        reasons.append(f"uses {', '.join(one.text for one in used)}")
    return Picked(
        offer=offer,
        used=used,
        left_out=_left_out(wanted, used, why),
        refusals=tuple(refusals),
        cautions=tuple(cautions),
        reasons=tuple(reasons),
        frozen=_frozen(survey, wishes, used or serving[offer.tag], offer),
        override=any(verdict.override for verdict in verdicts),
    )


def _judge(
    survey: Survey, wishes: Wishes, one: Chosen, offer: Offer, name: str | None = None
) -> Verdict:
    host, nvidia, gpu = survey.host, survey.nvidia, one.gpu
    capability = capability_of(gpu)
    known_ones = known_offers(offer)
    having = [
        other.release
        for other in known_ones
        if other.has_code(capability, host.architecture) and other.release != offer.release
    ]
    some, none = WORDS[offer.runtime]
    other_images = (
        f"Releases whose {some} it: {', '.join(dict.fromkeys(having))}"
        if having
        else f"{none} that the toolkit knows: it has none with code for this CPU architecture"
    )
    case = Case(
        name=name or called(gpu),
        capability=capability,
        gpu_class=gpu_class(gpu, host),
        driver=nvidia.driver_version,
        architecture=host.architecture,
        release=offer.release,
        family=offer.family,
        code=offer.has_code(capability, host.architecture),
        code_anywhere=any(
            capability in capabilities
            for other in known_ones
            for capabilities in other.capabilities.values()
        ),
        require_branches=offer.require_branches,
        compat_branches=offer.compat_branches,
        brand=gpu.brand,
        cuda_header=nvidia.cuda_version,
        tegra=host.tegra or gpu_class(gpu, host) == "tegra",
        wsl=host.wsl,
        l4t=host.l4t_major,
        toolkit=survey.docker.nvidia_ctk_version,
        forward_compat=wishes.forward_compat,
        cu129_override=wishes.cu129_override,
        runtime=offer.runtime,
    )
    verdict = judge(case, {**commands(host), "other_images": other_images})
    # Whatever a rule says: nothing runs on a GPU that it has no code for.
    assert not verdict.runs or case.code, f"rule {verdict.rule} forgot to ask for code"
    return verdict


def _nothing_runs(
    survey: Survey,
    service: Service,
    wishes: Wishes,
    considered: tuple[Chosen, ...],
    offers: tuple[Offer, ...],
) -> list[Refusal]:
    """Return one refusal for each kind of GPU that no offer runs on."""
    kinds: dict[tuple[object, ...], list[Chosen]] = {}
    for one in considered:
        key = (one.gpu.name, capability_of(one.gpu), gpu_class(one.gpu, survey.host))
        kinds.setdefault(key, []).append(one)
    refusals = []
    for kind in kinds.values():
        first = kind[0]
        numbers = ", ".join(str(index) for index in dict.fromkeys(one.gpu.index for one in kind))
        name = f"GPU {numbers} ({first.gpu.name})"
        verdicts = [_judge(survey, wishes, first, offer, name) for offer in offers]
        if any(verdict.runs for verdict in verdicts):
            continue
        refusals.append(_joined(survey, service, wishes, first, verdicts, offers))
    if not refusals:
        refusals.append(_apart(survey, wishes, service, considered, offers))
    return refusals


def _joined(
    survey: Survey,
    service: Service,
    wishes: Wishes,
    one: Chosen,
    verdicts: list[Verdict],
    offers: tuple[Offer, ...],
) -> Refusal:
    """Join what every offer said of one GPU: the least demanding one gives code and advice."""
    with_code = [verdict for verdict in verdicts if verdict.rule != "NO_CODE"] or verdicts
    told = with_code[-1]
    needed = list(dict.fromkeys(verdict.needed for verdict in with_code))
    advice = told.advice
    if wishes.release_of(service) is not None:
        others = [
            other.release
            for other in known_offers(offers[0])
            if _judge(survey, wishes, one, other).runs
        ]
        if others:
            advice += f" Or name release {others[0]}, which this GPU and driver can run."
    return Refusal(told.code or "NO_RULE", told.seen, "; or ".join(needed), advice, service.name)


def _apart(
    survey: Survey,
    wishes: Wishes,
    service: Service,
    considered: tuple[Chosen, ...],
    offers: tuple[Offer, ...],
) -> Refusal:
    """Refuse GPUs of which each runs some offer and none runs on all."""
    each = [
        f"{one.text}: "
        + ", ".join(offer.tag for offer in offers if _judge(survey, wishes, one, offer).runs)
        for one in considered
    ]
    return Refusal(
        "GPU_NO_COMMON_IMAGE",
        "; ".join(each),
        "one release that runs on every GPU of the service",
        f"Name GPUs of one kind in `gpus:`, or: {command('install_driver', survey.host)}",
        service.name,
    )


def _none_usable(wanted: Wanted, service: Service) -> Refusal:
    problems = [problem for _, problem in wanted.problems]
    return Refusal(
        "NO_USABLE_GPU",
        "; ".join(problem.seen for problem in problems),
        "a GPU that can be used",
        "; ".join(dict.fromkeys(problem.advice for problem in problems)),
        service.name,
    )


def _too_few(
    service: Service, needed: int, able: tuple[Chosen, ...], wanted: Wanted, survey: Survey
) -> Refusal:
    there = len(survey.nvidia.gpus)
    what = f"gpus: names {len(wanted.usable)}" if service.gpus != "all" else f"{there} are there"
    return Refusal(
        "TOO_FEW_GPUS",
        f"{needed} GPUs are needed (tp_size {service.tp_size}); {what}, {len(able)} can serve",
        f"{needed} GPUs that can serve",
        f"Set tp_size to {max(1, len(able))} or less, or name more GPUs in `gpus:`",
        service.name,
    )


def _left_out(wanted: Wanted, used: tuple[Chosen, ...], why: dict[int, str]) -> tuple[LeftOut, ...]:
    left = {
        gpu.index: LeftOut(gpu.index, gpu.name, problem.seen.removeprefix(f"{called(gpu)}: "))
        for gpu, problem in wanted.problems
    }
    taken = {one.gpu.index for one in used}
    for one in wanted.usable:
        index = one.gpu.index
        if index in why:
            left[index] = LeftOut(index, one.gpu.name, why[index])
        elif index not in taken and used:
            left[index] = LeftOut(
                index, one.gpu.name, f"not needed: the service uses {len(used)} of the GPUs it may"
            )
    return tuple(left[index] for index in sorted(left))


def _frozen(survey: Survey, wishes: Wishes, used: tuple[Chosen, ...], offer: Offer) -> str | None:
    """Return why a node cannot go on to a newer release and what frees it, or None.

    It says so of a driver only: a newer image that has no code for a GPU is no matter of drivers.
    """
    if offer.runtime == "wheel":
        return None  # packages need the driver that the newest release needs
    newer = [one for one in known_images() if _is_newer(one, offer)]
    if not newer:
        return None
    verdicts = [[_judge(survey, wishes, one, other) for one in used] for other in newer]
    if any(all(verdict.runs for verdict in each) for each in verdicts):
        return None
    if not any(verdict.code in DRIVER_CODES for verdict in verdicts[0]):
        return None
    needs = next(verdict for verdict in verdicts[0] if verdict.code in DRIVER_CODES)
    frees = (
        needs.needed
        if needs.code != "DRIVER_TOO_OLD"
        else f"driver {threshold('cuda13_minimum_driver')} or newer"
    )
    return (
        f"frozen at SGLang {offer.release}: driver {survey.nvidia.driver_version} runs no CUDA 13 "
        f"image, and {offer.release} is the last release with a CUDA 12 one; what frees it: "
        f"{frees}. {needs.advice}"
    )


def _is_newer(one: Offer, other: Offer) -> bool:
    releases = known_releases()
    return releases.index(one.release) < releases.index(other.release)


def _same_branch(
    survey: Survey, used: tuple[Chosen, ...], offer: Offer, service: str
) -> list[Caution]:
    """Warn where the toolkit would enable compatibility libraries that this GPU cannot use."""
    toolkit, driver = survey.docker.nvidia_ctk_version, survey.nvidia.driver_version
    if (
        offer.runtime == "wheel"
        or not known(toolkit)
        or not at_least(toolkit, threshold("toolkit_same_branch_compat"))
        or not used
    ):
        return []
    if branch_of(driver) != max(offer.compat_branches, default=None):
        return []
    if all(gpu_class(one.gpu, survey.host) in ("datacenter", "tegra", "spark") for one in used):
        return []
    return [
        Caution(
            "COMPAT_SAME_BRANCH",
            f"toolkit {toolkit} enables the image's compatibility libraries where they are newer than "
            f"driver {driver} of the same branch, and this GPU cannot use them: if the server ends "
            "with CUDA error 804, run `sudo nvidia-ctk config --set "
            "features.disable-cuda-compat-lib-hook=true --in-place`, make the CDI specification anew "
            "and restart Docker",
            service,
        )
    ]
