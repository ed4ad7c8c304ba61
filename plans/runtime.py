"""Which runtime, release, image and GPUs a service gets on a node; or every reason it gets none.

The order of things: the host, the GPUs that the operator's words name, the
images that are asked (those of the named release, else all, newest first),
and for each GPU and image the first rule of ``plans/data/rules.yaml`` that
names them. An image is taken where it runs on every GPU that the service uses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from facts.records import ABSENT, Survey, known
from locks.references import ReferenceRefused, parse_reference
from plans.access import gpu_access
from plans.decision import Decision, GpuAccess, LeftOut
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
from plans.hostdata import at_least, command, commands
from plans.hosts import docker_refusals, host_findings, smi_failed
from plans.images import Image, known_images, known_releases
from plans.memory import says_its_share
from plans.refusals import Caution, Refusal
from plans.rules import Case, Verdict, branch_of, judge, threshold
from plans.wishes import Service, Wishes

DRIVER_CODES = ("DRIVER_TOO_OLD", "TOOLKIT_TOO_OLD", "WSL_DRIVER_TOO_OLD")
"""Refusals of a newer image that a newer driver (or toolkit) would take away."""


def decide(survey: Survey, service: Service, wishes: Wishes) -> Decision:
    """Return what one service gets on one node, or all the refusals that apply.

    Takes the node's survey, the service and the wishes it is part of. Pure: the same three give
    the same decision. Raises nothing: what cannot be is a refusal with a stable code.
    """
    refusals, cautions = host_findings(survey, wishes)
    asked = _asked(service, wishes)
    refusals += asked.refusals
    picked = _pick(survey, service, wishes, asked.images)
    refusals += picked.refusals
    cautions += picked.cautions

    reasons: list[str] = []
    access: GpuAccess | None = None
    if wishes.runtime_of(service) == "wheel":
        refusals += _wheel(service)
    else:
        if wishes.runtime_of(service) == "auto":
            reasons.append("runtime image: auto takes the image, which brings its own CUDA")
        refusals += docker_refusals(survey)
        access, found, said = _access(survey, picked.used)
        refusals += found
        cautions += said
    cautions += _sharing(survey, service, wishes, picked)

    image = picked.image
    if image is not None:
        reasons.append(asked.reason.format(release=image.release))
        reasons += picked.reasons
        if picked.frozen and wishes.forward_compat:
            reasons.append(
                "forward_compat is on and does not apply: it needs a data center GPU, a driver branch "
                "in the CUDA 13 image's lists, and nvidia-container-toolkit "
                f"{threshold('toolkit_compat_hook')} or newer"
            )
        if picked.frozen:
            cautions.append(Caution("FROZEN_RELEASE", picked.frozen, service.name))
    override = image is not None and picked.override
    return Decision(
        kind="refused" if refusals else "image",
        release=image.release if image else asked.release,
        image=image.tag if image else None,
        cuda_family=image.family if image else None,
        gpus=tuple({one.gpu.index: one.gpu for one in picked.used}.values()),
        left_out=picked.left_out,
        access=access,
        environment={"NVIDIA_DISABLE_REQUIRE": "1"} if override else {},
        docker_arguments=_hidden_compat(image) if image and override else (),
        frozen=picked.frozen,
        reasons=tuple(dict.fromkeys(reasons)),
        refusals=tuple(dict.fromkeys(refusals)),
        cautions=tuple(dict.fromkeys(cautions)),
    )


def _wheel(service: Service) -> list[Refusal]:
    """Return why the wheel runtime refuses; a later release of the toolkit decides here."""
    return [
        Refusal(
            "WHEEL_NOT_YET",
            "runtime: wheel",
            "the image runtime: this version of the toolkit has no other yet",
            "Write `runtime: image` (or leave it out)",
            service.name,
        )
    ]


# --- what the operator's words allow ------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """The images that may be taken, in order of preference, and why these."""

    images: tuple[Image, ...]
    refusals: tuple[Refusal, ...]
    reason: str
    release: str | None = None  # that was named and is known


def _asked(service: Service, wishes: Wishes) -> _Asked:
    release, image = wishes.release_of(service), wishes.image_of(service)
    release = release.removeprefix("v") if release else None
    refusals: list[Refusal] = []
    if image is not None:
        try:
            parse_reference(image)
        except ReferenceRefused as refused:
            refusals.append(
                Refusal(
                    refused.code,
                    f"image: {image}",
                    "an image that is pinned: the tag of one release, or a digest",
                    str(refused),
                    service.name,
                )
            )
    if release is None:
        if image is not None:
            refusals.append(
                Refusal(
                    "IMAGE_NEEDS_RELEASE",
                    f"image: {image}, and no release: beside it",
                    "the release that the image holds: flags and rules depend on it",
                    f"Write `release:` beside `image:`, one of {', '.join(known_releases())}",
                    service.name,
                )
            )
            return _Asked((), tuple(refusals), "")
        return _Asked(
            known_images(),
            tuple(refusals),
            "release {release}: the newest that this node's driver and GPUs can run",
        )
    images = tuple(one for one in known_images() if one.release == release)
    if not images:
        refusals.append(
            Refusal(
                "RELEASE_UNKNOWN",
                f"release: {release}",
                f"a release that the toolkit knows: {', '.join(known_releases())}",
                "Write one of these, or update the toolkit",
                service.name,
            )
        )
    if image is not None and images:
        like = next((one for one in images if _same_kind(one.tag, image)), images[0])
        images = (replace(like, tag=image),)
    return _Asked(
        images,
        tuple(refusals),
        "release {release}: named in the inventory",
        release if images else None,
    )


def _same_kind(tag: str, image: str) -> bool:
    """Say whether two tags end alike: ``v0.5.19-cu129`` and ``mirror/x:0.5.19-cu129``."""
    ending = tag.rpartition(":")[2].partition("-")[2]
    other = image.partition("@")[0].rpartition(":")[2].partition("-")[2]
    return ending == other if ending else not other


# --- images against GPUs ------------------------------------------------------------------


@dataclass(frozen=True)
class _Picked:
    """The image that is taken and the GPUs that are used, or why there are none."""

    image: Image | None = None
    used: tuple[Chosen, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    cautions: tuple[Caution, ...] = ()
    reasons: tuple[str, ...] = ()
    frozen: str | None = None
    override: bool = False


def _pick(survey: Survey, service: Service, wishes: Wishes, images: tuple[Image, ...]) -> _Picked:
    if smi_failed(survey) or survey.host.vgpu_host or not survey.nvidia.gpus:
        return _Picked()
    wanted = wanted_gpus(survey, service)
    refusals = list(wanted.refusals)
    needed = gpus_needed(service)
    everything = service.gpus == "all"
    if everything and not wanted.usable:
        refusals.append(_none_usable(wanted, service))
    # Of GPUs that cannot be used now (MIG without a name, a fault) the image is still told.
    pool = wanted.usable or tuple(Chosen(gpu) for gpu in wanted.all_gpus)
    considered = pool if everything else pool[:needed]

    def runs(one: Chosen, image: Image) -> bool:
        return _judge(survey, wishes, one, image).runs

    serving = {image.tag: tuple(one for one in considered if runs(one, image)) for image in images}
    least = min(needed, len(considered)) if everything else len(considered)
    image = next((one for one in images if len(serving[one.tag]) >= max(1, least)), None)
    if image is None and everything:
        image = max(images, key=lambda one: len(serving[one.tag]), default=None)
        if image is not None and not serving[image.tag]:
            image = None
    if image is None:
        if considered and images:
            refusals += _no_image(survey, service, wishes, considered, images)
        return _Picked(
            left_out=_left_out(wanted, (), {}),
            refusals=tuple(refusals),
        )
    able = serving[image.tag] if wanted.usable else ()
    used = able[:needed]
    if wanted.usable and len(used) < needed and not wanted.refusals:
        refusals.append(_too_few(service, needed, able, wanted, survey))
    verdicts = [_judge(survey, wishes, one, image) for one in used or serving[image.tag]]
    why = {
        one.gpu.index: _judge(survey, wishes, one, image).seen
        for one in considered
        if one not in serving[image.tag]
    }
    cautions = [
        Caution(code, text, service.name) for verdict in verdicts for code, text in verdict.cautions
    ]
    cautions += cautions_of(used, survey, service.name)
    cautions += _same_branch(survey, used, image, service.name)
    reasons = list(dict.fromkeys(verdict.reason for verdict in verdicts))
    if used:
        reasons.append(f"uses {', '.join(one.text for one in used)}")
    return _Picked(
        image=image,
        used=used,
        left_out=_left_out(wanted, used, why),
        refusals=tuple(refusals),
        cautions=tuple(cautions),
        reasons=tuple(reasons),
        frozen=_frozen(survey, wishes, used or serving[image.tag], image),
        override=any(verdict.override for verdict in verdicts),
    )


def _judge(
    survey: Survey, wishes: Wishes, one: Chosen, image: Image, name: str | None = None
) -> Verdict:
    host, nvidia, gpu = survey.host, survey.nvidia, one.gpu
    capability = capability_of(gpu)
    having = [
        other.release
        for other in known_images()
        if other.has_code(capability, host.architecture) and other.release != image.release
    ]
    other_images = (
        f"Releases whose image has it: {', '.join(dict.fromkeys(having))}"
        if having
        else "No image that the toolkit knows has it for this CPU architecture"
    )
    case = Case(
        name=name or called(gpu),
        capability=capability,
        gpu_class=gpu_class(gpu, host),
        driver=nvidia.driver_version,
        architecture=host.architecture,
        release=image.release,
        family=image.family,
        code=image.has_code(capability, host.architecture),
        code_anywhere=any(
            capability in capabilities
            for other in known_images()
            for capabilities in other.capabilities.values()
        ),
        require_branches=image.require_branches,
        compat_branches=image.compat_branches,
        brand=gpu.brand,
        cuda_header=nvidia.cuda_version,
        tegra=host.tegra or gpu_class(gpu, host) == "tegra",
        wsl=host.wsl,
        l4t=host.l4t_major,
        toolkit=survey.docker.nvidia_ctk_version,
        forward_compat=wishes.forward_compat,
        cu129_override=wishes.cu129_override,
    )
    verdict = judge(case, {**commands(host), "other_images": other_images})
    # Whatever a rule says: an image runs on no GPU that it has no code for.
    assert not verdict.runs or case.code, f"rule {verdict.rule} forgot to ask for code"
    return verdict


def _no_image(
    survey: Survey,
    service: Service,
    wishes: Wishes,
    considered: tuple[Chosen, ...],
    images: tuple[Image, ...],
) -> list[Refusal]:
    """Return one refusal for each kind of GPU that no image runs on."""
    kinds: dict[tuple[object, ...], list[Chosen]] = {}
    for one in considered:
        key = (one.gpu.name, capability_of(one.gpu), gpu_class(one.gpu, survey.host))
        kinds.setdefault(key, []).append(one)
    refusals = []
    for kind in kinds.values():
        first = kind[0]
        numbers = ", ".join(str(index) for index in dict.fromkeys(one.gpu.index for one in kind))
        name = f"GPU {numbers} ({first.gpu.name})"
        verdicts = [_judge(survey, wishes, first, image, name) for image in images]
        if any(verdict.runs for verdict in verdicts):
            continue
        refusals.append(_joined(survey, service, wishes, first, verdicts))
    if not refusals:
        refusals.append(_apart(survey, wishes, service, considered, images))
    return refusals


def _joined(
    survey: Survey, service: Service, wishes: Wishes, one: Chosen, verdicts: list[Verdict]
) -> Refusal:
    """Join what every image said of one GPU: the least demanding one gives code and advice."""
    with_code = [verdict for verdict in verdicts if verdict.rule != "NO_CODE"] or verdicts
    told = with_code[-1]
    needed = list(dict.fromkeys(verdict.needed for verdict in with_code))
    advice = told.advice
    if wishes.release_of(service) is not None:
        others = [
            image.release for image in known_images() if _judge(survey, wishes, one, image).runs
        ]
        if others:
            advice += f" Or name release {others[0]}, which this GPU and driver can run."
    return Refusal(told.code or "NO_RULE", told.seen, "; or ".join(needed), advice, service.name)


def _apart(
    survey: Survey,
    wishes: Wishes,
    service: Service,
    considered: tuple[Chosen, ...],
    images: tuple[Image, ...],
) -> Refusal:
    """Refuse GPUs of which each runs some image and none runs on all."""
    each = [
        f"{one.text}: "
        + ", ".join(image.tag for image in images if _judge(survey, wishes, one, image).runs)
        for one in considered
    ]
    return Refusal(
        "GPU_NO_COMMON_IMAGE",
        "; ".join(each),
        "one image that runs on every GPU of the service",
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


def _frozen(survey: Survey, wishes: Wishes, used: tuple[Chosen, ...], image: Image) -> str | None:
    """Return why a node cannot go on to a newer release and what frees it, or None.

    It says so of a driver only: a newer image that has no code for a GPU is no matter of drivers.
    """
    newer = [one for one in known_images() if _is_newer(one, image)]
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
        f"frozen at SGLang {image.release}: driver {survey.nvidia.driver_version} runs no CUDA 13 "
        f"image, and {image.release} is the last release with a CUDA 12 one; what frees it: "
        f"{frees}. {needs.advice}"
    )


def _is_newer(one: Image, other: Image) -> bool:
    releases = known_releases()
    return releases.index(one.release) < releases.index(other.release)


def _hidden_compat(image: Image) -> tuple[str, ...]:
    """Return the argument that hides an image's compatibility libraries from the toolkit's hook.

    The hook looks for libcuda below /usr/local/cuda/compat, which is a link to this directory.
    https://github.com/NVIDIA/nvidia-container-toolkit/tree/main/cmd/nvidia-cdi-hook/cudacompat
    """
    return (f"--tmpfs=/usr/local/cuda-{image.cuda}/compat",)


def _same_branch(
    survey: Survey, used: tuple[Chosen, ...], image: Image, service: str
) -> list[Caution]:
    """Warn where the toolkit would enable compatibility libraries that this GPU cannot use."""
    toolkit, driver = survey.docker.nvidia_ctk_version, survey.nvidia.driver_version
    if (
        not known(toolkit)
        or not at_least(toolkit, threshold("toolkit_same_branch_compat"))
        or not used
    ):
        return []
    if branch_of(driver) != max(image.compat_branches, default=None):
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


# --- the node's Docker, and the other services --------------------------------------------


def _access(
    survey: Survey, used: tuple[Chosen, ...]
) -> tuple[GpuAccess | None, list[Refusal], list[Caution]]:
    docker = survey.docker
    if "docker" in survey.unfinished:
        return None, [], []
    if known(docker.server_version):
        return gpu_access(survey, used)
    # Without a daemon its runtimes are not known; that there is no toolkit is.
    if docker.nvidia_ctk_version == ABSENT and not docker.cdi_devices and used:
        return (
            None,
            [
                Refusal(
                    "TOOLKIT_MISSING",
                    "nvidia-ctk is not there, and no CDI specification lists a GPU",
                    "the NVIDIA Container Toolkit, which gives containers their GPUs",
                    command("install_toolkit", survey.host),
                )
            ],
            [],
        )
    return None, [], []


def _sharing(survey: Survey, service: Service, wishes: Wishes, picked: _Picked) -> list[Caution]:
    """Say which other services of the node use the same GPUs."""
    mine = {one.text for one in picked.used}
    cautions = []
    for other in wishes.services:
        if other.name == service.name or not mine:
            continue
        theirs = _pick(survey, other, wishes, _asked(other, wishes).images).used
        both = [one.text for one in theirs if one.text in mine]
        if both and not (says_its_share(service) and says_its_share(other)):
            cautions.append(
                Caution(
                    "GPU_SHARED",
                    f"{', '.join(both)}: used by the service {other.name} as well; give each its "
                    "own with `gpus:`, or share the memory with mem-fraction-static",
                    service.name,
                )
            )
    return cautions
