"""What the lock says of a service: its image by digest, its model by commit."""

from __future__ import annotations

from dataclasses import dataclass

from facts.records import ServiceState, Survey, known
from locks.records import Lock, LockedImage, LockedModel, model_key
from plans import text
from plans.bundle import Bundle
from plans.bundled import FromBundle, bundled_image
from plans.decision import Decision
from plans.findings import Findings
from plans.mirrored import mirror_caution, name_to_pull, names_there
from plans.refusals import Caution
from plans.wishes import Service, Wishes

UNPACKED = 3.5
"""Bytes of disk that a pull needs for each compressed byte: the download and what it unpacks to.

Inferred: CUDA images unpack to about 2.5 times their compressed size.
"""


@dataclass(frozen=True)
class Image:
    run: str  # what docker run gets
    locked: LockedImage
    present: bool
    bundled: FromBundle | None = None  # it is loaded from a bundle


def locked_image(
    service: Service,
    wishes: Wishes,
    decision: Decision,
    lock: Lock | None,
    survey: Survey,
    found: Findings,
    bundle: Bundle | None = None,
) -> Image | None:
    tag = decision.image
    if tag is None:
        return None
    locked = lock.image(tag) if lock is not None else None
    if locked is None:
        found.unresolved.append(_why_unresolved(tag, lock))
        return None
    architecture = survey.host.architecture
    if not known(architecture):
        return None
    platform = locked.for_architecture(architecture)
    if platform is None:
        found.refuse(
            "IMAGE_MISSING_ARCHITECTURE",
            service.name,
            f"{tag} is there for {', '.join(locked.architectures()) or 'no architecture that is known'}",
            f"an image for {architecture}",
            "name another release or image, then run: sglang-node lock",
        )
        return None
    by_config = platform.config_digest
    names = names_there(locked, platform, survey.docker)
    ids = {image.config_digest for image in survey.docker.images}
    # Where containerd keeps the images, their ids are digests of manifests.
    known_as = (by_config, platform.manifest_digest, locked.index_digest)
    loaded = next((one for one in known_as if one in ids), None)
    pulled = bool(names)
    # An image that was loaded from a file has no digest of a registry: it is the same
    # image where its configuration is. What the service runs already is kept.
    running = survey.services.get(service.name, ServiceState(service.name)).launch.get(
        "SGLANG_IMAGE"
    )
    if loaded and (running == loaded or not pulled):
        return Image(loaded, locked, present=True)
    if names:
        return Image(running if running in names else names[0], locked, present=True)
    if bundle is not None:
        one = bundled_image(bundle, service.name, locked, platform, survey, found)
        return Image(one.runs_as, locked, present=False, bundled=one) if one else None
    _check_space(service, locked, platform.compressed_bytes, survey, found)
    name = name_to_pull(locked, wishes.registry, survey.docker)
    caution = mirror_caution(service.name, name, wishes.registry, survey.docker)
    found.cautions += [caution] if caution else []
    return Image(name, locked, present=False)


def _check_space(
    service: Service, locked: LockedImage, compressed: int, survey: Survey, found: Findings
) -> None:
    store = next(
        (d for d in (survey.docker.image_store_dir, survey.docker.root_dir) if known(d)), None
    )
    space = survey.spaces.get(store) if store else None
    if space is None or not known(space.free_bytes):
        found.cautions.append(
            Caution(
                "SPACE_UNKNOWN",
                f"free space of Docker's store{f' ({store})' if store else ''} could not be read",
                service.name,
            )
        )
        return
    needed = int(compressed * UNPACKED)
    if space.free_bytes < needed:
        found.refuse(
            "DISK_FULL",
            service.name,
            f"{text.size(space.free_bytes)} free on {space.mount} for Docker's store {store}",
            f"about {text.size(needed)} for {locked.asked} ({text.size(compressed)} compressed)",
            "make room: sglang-node collect TARGET, or move Docker's data-root to a larger disk",
        )


def locked_model(service: Service, lock: Lock | None, found: Findings) -> LockedModel | None:
    if service.is_local:
        return None
    model = model_in(lock, service)
    if model is None:
        what = model_key(service.model, service.revision or "main")
        found.unresolved.append(_why_unresolved(what, lock))
    return model


def model_in(lock: Lock | None, service: Service) -> LockedModel | None:
    """Return what the lock has of a service's hub model, or None."""
    return lock.model(service.model, service.revision or "main") if lock is not None else None


def _why_unresolved(what: str, lock: Lock | None) -> str:
    why = lock.why_not(what) if lock is not None else None
    return f"{what}: {why.why} ({why.command})" if why else f"{what}: not locked"
