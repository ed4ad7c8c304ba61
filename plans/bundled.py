"""What a node's plan takes from a bundle, and what keeps the bundle from that node."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from facts.records import HubFiles, Survey, known
from locks.records import Lock, LockedImage, PlatformImage
from plans import paths, text
from plans.bundle import Bundle, BundledEnvironment, BundledImage, BundledModel, Taken
from plans.findings import Findings
from plans.places import LEAST_FREE
from plans.plan import Weights
from plans.refusals import Caution, Refusal
from plans.wanted import images_wanted, models_wanted
from plans.weights import unproven
from plans.wheel.environment import PlannedEnvironment
from plans.wheel.packages import manager_of
from plans.wishes import Wishes

AGAIN = "make a bundle on a node that is like this one: sglang-node bundle TARGET --out FILE"


@dataclass(frozen=True)
class FromBundle:
    """An image of a bundle, and what Docker will call it: an id, which is a digest."""

    image: BundledImage
    runs_as: str


def other_lock(bundle: Bundle, lock: Lock | None, wishes: Wishes) -> Refusal | None:
    """Return why a bundle was made from another lock than the inventory's, or None.

    Compared is what the wishes ask for; what the inventory's lock does not have is no contrast.
    """
    if lock is None:
        return None
    made = bundle.manifest.locked
    for tag in images_wanted([wishes]):
        ours, theirs = lock.image(tag), made.image(tag)
        if ours and theirs and ours.index_digest != theirs.index_digest:
            return _other(tag, theirs.index_digest, ours.index_digest)
    for repo, revision in models_wanted([wishes]):
        mine, its = lock.model(repo, revision), made.model(repo, revision)
        if mine and its and mine.commit != its.commit:
            return _other(f"{repo}@{revision}", its.commit, mine.commit)
    return None


def _other(what: str, theirs: str, ours: str) -> Refusal:
    return Refusal(
        "BUNDLE_OTHER_LOCK",
        f"for {what} the bundle was made from {theirs}, and the inventory's lock has {ours}",
        "a bundle that was made from the inventory's lock",
        "make the bundle anew, or take the lock that it was made from beside the inventory",
    )


def check_bundle(bundle: Bundle, survey: Survey, found: Findings) -> bool:
    """Refuse a bundle for another architecture; say whether anything of it can be used here."""
    architecture = survey.host.architecture
    if architecture == bundle.manifest.architecture:
        return True
    found.refuse(
        "BUNDLE_ARCHITECTURE",
        None,
        f"the bundle is for {bundle.manifest.architecture}, and the node is {architecture}",
        "a bundle for the node's architecture",
        AGAIN,
    )
    return False


def bundled_image(
    bundle: Bundle,
    service: str,
    locked: LockedImage,
    platform: PlatformImage,
    survey: Survey,
    found: Findings,
) -> FromBundle | None:
    """Return the image that is loaded from a bundle, or None where it is refused.

    A loaded image has no digest of a registry. What proves it is the digest of its configuration,
    which the lock has from the image's manifest and which names every layer by its content: Docker
    checks the layers against it as it loads them. Where Docker keeps images itself, an image's id
    is that digest; where containerd keeps them the id is the digest of a manifest, so it must be
    one that the lock knows.
    """
    wanted = platform.config_digest
    image = next((i for i in bundle.manifest.images if i.config_digest == wanted), None)
    if image is None:
        _lacks(found, service, f"the image {locked.asked} ({wanted[:19]})")
        return None
    if not known(survey.docker.image_store_dir):
        runs_as = wanted
    elif image.saved_digest in (platform.manifest_digest, locked.index_digest):
        runs_as = image.saved_digest
    else:
        found.refuse(
            "BUNDLE_STORE",
            service,
            f"Docker keeps its images in containerd's store ({survey.docker.image_store_dir}), "
            "where an image is known by its manifest, and the bundle's was saved from another kind "
            "of store, without the manifest that the lock has",
            "a bundle that was made on a node whose Docker keeps images in the same kind of store",
            AGAIN,
        )
        return None
    return FromBundle(image, runs_as)


def taken(
    bundle: Bundle,
    service: str,
    image: FromBundle | None,
    weights: Weights | None,
    survey: Survey,
    found: Findings,
    environment: BundledEnvironment | None = None,
) -> Taken | None:
    """Return what a service takes from a bundle; None where the node has it all."""
    files: list[str] = []
    blobs = ""
    picked = []
    if weights is not None and weights.fetch:
        there = survey.weights.get(f"{weights.home}:{paths.hub_cache_of(weights.repo)}")
        blobs = paths.hub_blobs(weights.home, weights.repo)
        model = _model(bundle, weights.repo, weights.commit)
        by_checksum = {file.checksum: file for file in model.files} if model else {}
        for file in unproven(weights.files, weights.commit, there or HubFiles()):
            one = by_checksum.get(file.sha256 or file.git_blob or "")
            if one is None or one.content.size != file.size_bytes:
                files.append(file.path)
            else:
                picked.append(one)
    if files:
        what = f"{len(files)} files of {weights.repo}" if weights else ""
        _lacks(found, service, f"{what} ({files[0]}{' and others' if files[1:] else ''})")
        return None
    if image is None and not picked and environment is None:
        return None
    one_each = {file.checksum: file for file in picked}
    return Taken(
        bundle,
        image.image if image else None,
        image.runs_as if image else None,
        tuple(one_each.values()),
        blobs,
        environment,
    )


def bundled_environment(
    bundle: Bundle,
    service: str,
    planned: PlannedEnvironment,
    survey: Survey,
    found: Findings,
) -> tuple[PlannedEnvironment, BundledEnvironment | None]:
    """Return an environment as it is built from a bundle, and what it is built from.

    What is of the operating system is in no bundle: where that is missing the plan refuses.
    """
    if planned.packages:
        manager = manager_of(survey)
        command = f"sudo {manager} install {' '.join(planned.packages)}" if manager else ""
        found.refuse(
            "BUNDLE_PACKAGES",
            service,
            f"the distribution's {', '.join(planned.packages)} missing on the node; no bundle has them",
            "packages of the operating system, from a mirror of it that the node reaches",
            f"{command}, then apply again" if command else "install them, then apply again",
        )
    if not planned.build:
        return planned, None
    environments = bundle.manifest.environments
    one = next((each for each in environments if each.key == planned.key), None)
    if one is None:
        what = f"the environment {planned.key} ({planned.of} {planned.release})"
        _lacks(found, service, what)
        return planned, None
    glibc, needed = survey.host.glibc, bundle.manifest.glibc
    if needed is not None and known(glibc) and _numbers(glibc) < _numbers(needed):
        found.refuse(
            "BUNDLE_GLIBC",
            service,
            f"the wheels of the bundle need glibc {needed}, and the node has {glibc}",
            f"glibc {needed} or newer",
            "upgrade the operating system, or serve from the image: runtime: image",
        )
    for number, change in enumerate(found.changes):
        if change.kind == "environment" and change.what.startswith(planned.key):
            found.changes[number] = replace(change, why=f"{planned.why}: built from the bundle")
    if not bundle.proved:
        found.cautions.append(
            Caution(
                "BUNDLE_UNPROVED",
                "uv and Python come from the bundle and run on the node as root: they are as "
                "trustworthy as the file is. What makes it the one that was made is its hash: "
                f"--bundle-sha256, with what sglang-node bundle printed (this one has {bundle.sha256})",
                service,
            )
        )
    # uv is in the bundle: the controller need not fetch it.
    return replace(planned, bring_uv=False), one


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version)[:2])


def check_room(takes: list[Taken], survey: Survey, found: Findings) -> None:
    """Refuse where what is sent, and the images that are unpacked from it, has no room."""
    space = survey.spaces.get(paths.STATE)
    if not takes or space is None or not known(space.free_bytes):
        return
    members = {member.sha256: member.size for one in takes for member in one.members}
    images = {one.image.config_digest: one.image.archive.size for one in takes if one.image}
    needed = sum(members.values()) + LEAST_FREE
    said = f"{text.size(sum(members.values()))} of the bundle"
    docker = survey.docker
    store = next((d for d in (docker.image_store_dir, docker.root_dir) if known(d)), None)
    kept = survey.spaces.get(store) if store else None
    unpacked = sum(images.values())
    if kept is not None and kept.mount != space.mount and known(kept.free_bytes):
        if kept.free_bytes < unpacked:
            found.refuse(
                "DISK_FULL",
                None,
                f"{text.size(kept.free_bytes)} free on {kept.mount} for Docker's store {store}",
                f"{text.size(unpacked)} that Docker unpacks from the bundle",
                "make room: sglang-node collect TARGET, or move Docker's data-root to a larger disk",
            )
    elif images and kept is not None:
        needed += unpacked
        said += f", and {text.size(unpacked)} that Docker unpacks from it"
    if space.free_bytes < needed:
        found.refuse(
            "DISK_FULL",
            None,
            f"{text.size(space.free_bytes)} free on {space.mount} for {paths.BUNDLES}",
            f"{text.size(needed)}: {said}",
            f"make room: df -h {space.mount}; sglang-node collect TARGET",
        )


def _model(bundle: Bundle, repo: str, commit: str) -> BundledModel | None:
    models = bundle.manifest.models
    return next((m for m in models if m.repo == repo and m.commit == commit), None)


def _lacks(found: Findings, service: str, what: str) -> None:
    found.refuse(
        "BUNDLE_LACKS",
        service,
        f"neither the node nor the bundle has {what}",
        "a bundle that was made for this service; weights are in it where --weights was given",
        "sglang-node bundle TARGET --out FILE --weights, or apply without --bundle where a "
        "network is there",
    )


def lacking(found: Findings) -> None:
    """Refuse what the bundle's lock does not have: nobody is asked for it."""
    for one in found.unresolved:
        found.refuse(
            "BUNDLE_LACKS",
            None,
            f"the bundle's lock does not have {one}",
            "a bundle that was made for the services of this node",
            AGAIN,
        )
    found.unresolved.clear()
