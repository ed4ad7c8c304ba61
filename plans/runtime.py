"""Which runtime, release, image and GPUs a service gets on a node; or every reason it gets none.

What any runtime needs of the host is asked first. Then what the runtime that
the inventory names would give: the image here, the packages in
``plans.wheel.decide``. Where it names none (``auto``) both are asked, and
``plans.choice`` says which is taken and why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from facts.records import ABSENT, Survey, known
from locks.references import ReferenceRefused, parse_reference
from plans.access import gpu_access
from plans.choice import Choice, choose, deployed_in, needs
from plans.decision import Decision, GpuAccess
from plans.gpus import Chosen
from plans.hostdata import command
from plans.hosts import docker_refusals, host_findings, unfinished_elsewhere, unfinished_of
from plans.images import Offer, known_images, known_releases
from plans.memory import says_its_share
from plans.picking import pick
from plans.refusals import Caution, Refusal
from plans.rules import threshold
from plans.wheel.compilers import environment_of
from plans.wheel.data import host_needs
from plans.wheel.decide import wheel_choice
from plans.wishes import Service, Wishes


def decide(survey: Survey, service: Service, wishes: Wishes) -> Decision:
    """Return what one service gets on one node, or all the refusals that apply.

    Takes the node's survey, the service and the wishes it is part of. Pure: the same three give
    the same decision. Raises nothing: what cannot be is a refusal with a stable code.
    """
    refusals, cautions = host_findings(survey, wishes)
    choice, reasons = _choose(survey, service, wishes)
    picked, offer = choice.picked, choice.picked.offer
    refusals += choice.refusals
    cautions += unfinished_elsewhere(survey, choice.runtime)
    cautions += choice.cautions
    cautions += _sharing(survey, service, wishes, choice)
    if offer is not None and picked.frozen:
        cautions.append(Caution("FROZEN_RELEASE", picked.frozen, service.name))
    image = offer if choice.runtime == "image" else None
    override = image is not None and picked.override
    environment = {"NVIDIA_DISABLE_REQUIRE": "1"} if override else {}
    if choice.runtime == "wheel" and offer is not None:
        environment = environment_of(survey, offer.cuda, service.name)
    return Decision(
        kind="refused" if refusals else choice.runtime,
        release=choice.release,
        image=image.tag if image else None,
        cuda_family=offer.family if offer else None,
        gpus=tuple({one.gpu.index: one.gpu for one in picked.used}.values()),
        left_out=picked.left_out,
        access=choice.access,
        environment=environment,
        docker_arguments=(
            *(_hidden_compat(image) if image and override else ()),
            *(_rdma(survey, service) if choice.runtime == "image" else ()),
        ),
        frozen=picked.frozen,
        reasons=tuple(dict.fromkeys([*reasons, *choice.reasons])),
        refusals=tuple(dict.fromkeys(refusals)),
        cautions=tuple(dict.fromkeys(cautions)),
        runtime=choice.runtime,
    )


def _rdma(survey: Survey, service: Service) -> tuple[str, ...]:
    """Return what lets a container on the node's own network use its adapters for RDMA.

    NVIDIA's toolkit gives it GPUs alone, and NCCL would go on over TCP without a word.
    """
    there = survey.nvidia.rdma and service.network == "host"
    return ("--device=/dev/infiniband",) if there else ()


def _choose(survey: Survey, service: Service, wishes: Wishes) -> tuple[Choice, list[str]]:
    """Return what the named runtime gives, or the one that ``auto`` takes; and why that one."""
    named = wishes.runtime_of(service)
    if named == "image":
        return _image_choice(survey, service, wishes), []
    if named == "wheel":
        return _wheel_or_the_image_said(survey, service, wishes)
    image = _image_choice(survey, service, wishes)
    if wishes.image_of(service) is not None:
        return image, ["runtime image: the inventory names an image"]
    wheel = wheel_choice(survey, service, wishes)
    return choose(
        image,
        wheel,
        deployed_in(survey, service.name),
        host_needs().passing,
        own_lock=wishes.wheel_lock_of(service) is not None,
    )


def _wheel_or_the_image_said(
    survey: Survey, service: Service, wishes: Wishes
) -> tuple[Choice, list[str]]:
    """Return what the wheel runtime gives; where it gives nothing say what the image would."""
    wheel = wheel_choice(survey, service, wishes)
    if wheel.works:
        return wheel, ["runtime wheel: asked for by name"]
    image = _image_choice(survey, service, wishes)
    offer = image.picked.offer
    if offer is None:
        return wheel, []
    if image.works:
        return wheel, [f"runtime image would work: {offer.tag}"]
    return wheel, [f"runtime image ({offer.tag}) would need {needs(image.refusals)}"]


def _image_choice(survey: Survey, service: Service, wishes: Wishes) -> Choice:
    """Return what an image would give a service."""
    asked = _asked(service, wishes)
    picked = pick(survey, service, wishes, asked.images)
    access, found, said = _access(survey, picked.used)
    reasons: list[str] = []
    if picked.offer is not None:
        reasons = [asked.reason.format(release=picked.offer.release), *picked.reasons]
        if picked.frozen and wishes.forward_compat:
            reasons.append(
                "forward_compat is on and does not apply: it needs a data center GPU, a driver branch "
                "in the CUDA 13 image's lists, and nvidia-container-toolkit "
                f"{threshold('toolkit_compat_hook')} or newer"
            )
    return Choice(
        runtime="image",
        release=picked.offer.release if picked.offer else asked.release,
        picked=picked,
        refusals=(
            *unfinished_of(survey, "image"),
            *asked.refusals,
            *picked.refusals,
            *docker_refusals(survey),
            *found,
        ),
        cautions=(*picked.cautions, *said),
        reasons=tuple(reasons),
        access=access,
        asked=asked.refusals,
    )


def _hidden_compat(offer: Offer) -> tuple[str, ...]:
    """Return the argument that hides an image's compatibility libraries from the toolkit's hook.

    The hook looks for libcuda below /usr/local/cuda/compat, which is a link to this directory.
    https://github.com/NVIDIA/nvidia-container-toolkit/tree/main/cmd/nvidia-cdi-hook/cudacompat
    """
    return (f"--tmpfs=/usr/local/cuda-{offer.cuda}/compat",)


# --- what the operator's words allow ------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """The images that may be taken, in order of preference, and why these."""

    images: tuple[Offer, ...]
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
        "release {release}: asked for by name",
        release if images else None,
    )


def _same_kind(tag: str, image: str) -> bool:
    """Say whether two tags end alike: ``v0.5.19-cu129`` and ``mirror/x:0.5.19-cu129``."""
    ending = tag.rpartition(":")[2].partition("-")[2]
    other = image.partition("@")[0].rpartition(":")[2].partition("-")[2]
    return ending == other if ending else not other


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


def _sharing(survey: Survey, service: Service, wishes: Wishes, choice: Choice) -> list[Caution]:
    """Say which other services of the node use the same GPUs."""
    mine = {one.text for one in choice.picked.used}
    cautions = []
    for other in wishes.services:
        if other.name == service.name or not mine:
            continue
        theirs = _choose(survey, other, wishes)[0].picked.used
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
