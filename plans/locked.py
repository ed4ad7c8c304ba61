"""What the lock says of a service: its image by digest, its model by commit."""

from __future__ import annotations

from dataclasses import dataclass

from facts.records import ServiceState, Survey, known
from locks.records import Lock, LockedImage, LockedModel, model_key
from plans import text
from plans.decision import Decision
from plans.findings import Findings
from plans.refusals import Caution
from plans.wishes import Service

UNPACKED = 3.5
"""Bytes of disk that a pull needs for each compressed byte: the download and what it unpacks to.

Inferred: CUDA images unpack to about 2.5 times their compressed size.
"""


@dataclass(frozen=True)
class Image:
    run: str  # what docker run gets
    locked: LockedImage
    present: bool


def locked_image(
    service: Service,
    decision: Decision,
    lock: Lock | None,
    survey: Survey,
    found: Findings,
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
    pinned = text.short_reference(locked)
    by_config = platform.config_digest
    here = {image.digest for image in survey.docker.images}
    ids = {image.config_digest for image in survey.docker.images}
    pulled = locked.index_digest in here or platform.manifest_digest in here
    loaded = bool({by_config, platform.manifest_digest, locked.index_digest} & ids)
    # An image that was loaded from a file has no digest of a registry: it is the same
    # image where its configuration is. What the service runs already is kept.
    running = survey.services.get(service.name, ServiceState(service.name)).launch.get(
        "SGLANG_IMAGE"
    )
    if loaded and (running == by_config or not pulled):
        return Image(by_config, locked, present=True)
    if not pulled:
        _check_space(service, locked, platform.compressed_bytes, survey, found)
    return Image(pinned, locked, present=pulled)


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
            "make room: docker image prune, or move Docker's data-root to a larger disk",
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
