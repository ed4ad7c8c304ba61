"""What a bundle is made of: from the plan of the node that makes it to the manifest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from facts.records import Survey
from locks.records import Lock, LockedFile
from plans import paths
from plans.bundle import (
    BundledEnvironment,
    BundledFile,
    BundledImage,
    BundledModel,
    BundledWeight,
    Manifest,
    Member,
    Served,
    sha256_of,
)
from plans.bundle_scripts import FILE_MARK, EnvironmentToBundle, ImageToSave
from plans.plan import NodePlan, Weights
from plans.refusals import Refusal
from plans.version import VERSION
from plans.wheel.tools import uv_path
from releases.wheels import read_lock


@dataclass(frozen=True)
class Ingredients:
    """What goes into a bundle, by what a node's plan says of its services."""

    serves: tuple[Served, ...]
    images: tuple[tuple[ImageToSave, str], ...]  # with the digest of the lock's index
    models: tuple[Weights, ...]
    environments: tuple[EnvironmentToBundle, ...]
    architecture: str

    @property
    def small_files(self) -> tuple[str, ...]:
        """Files of models that the lock has no SHA-256 of: they are hashed on the node."""
        return tuple(
            path for model in self.models for path, file in _files(model) if file.sha256 is None
        )


@dataclass
class Gathered:
    """What the node said of the files: SHA-256, size, digest of a saved image's manifest."""

    files: dict[str, tuple[Member, str | None]] = field(default_factory=dict)
    pythons: dict[str, str] = field(default_factory=dict)
    """Environment -> archive of its Python; none for one that runs on the distribution's."""

    def read(self, lines: Iterable[str], environment: str | None = None) -> None:
        """Take what a program printed; ``environment`` is the key of the one it was run for."""
        for line in lines:
            found = re.fullmatch(
                re.escape(FILE_MARK) + r"([0-9a-f]{64}) ([0-9]+) (-|sha256:[0-9a-f]{64}) (/.+)",
                line,
            )
            if found:
                member = Member(sha256=found[1], size=int(found[2]))
                self.files[found[4]] = (member, None if found[3] == "-" else found[3])
                if environment is not None and found[4].startswith(_python_begins()):
                    self.pythons[environment] = found[4]


def ingredients(
    plan: NodePlan, lock: Lock, *, weights: bool, images: bool = True
) -> Ingredients | Refusal:
    """Return what a bundle of a node's services has in it, or why there can be none."""
    survey = plan.survey
    assert survey is not None
    architecture = survey.host.architecture
    saved: dict[str, tuple[ImageToSave, str]] = {}
    models: dict[tuple[str, str], Weights] = {}
    environments: dict[str, EnvironmentToBundle] = {}
    serves = []
    for one in plan.services:
        if one.launch is None:
            return _nothing(one.name)
        service = one.launch.service
        if weights and one.weights is not None:
            models[(one.weights.repo, one.weights.commit)] = one.weights
        serves.append(
            Served(
                name=one.name,
                model=service.model,
                release=one.decision.release or "unknown",
                runtime="wheel" if one.environment else "image",
            )
        )
        if one.environment is not None:
            packages = read_lock(one.environment.requirements)
            environments[one.environment.key] = EnvironmentToBundle(one.environment, packages)
            continue
        tag = one.decision.image or ""
        locked = lock.image(tag)
        platform = locked.for_architecture(str(architecture)) if locked else None
        if locked is None or platform is None:
            return _nothing(one.name)
        if images:
            saved[platform.config_digest] = (
                ImageToSave(locked.asked, one.launch.image, platform.config_digest),
                locked.index_digest,
            )
    if plan.door is not None and plan.door.environment is not None:
        its = plan.door.environment
        environments[its.key] = EnvironmentToBundle(its, read_lock(its.requirements))
    return Ingredients(
        tuple(serves),
        tuple(saved.values()),
        tuple(models.values()),
        tuple(environments.values()),
        str(architecture),
    )


def _nothing(service: str) -> Refusal:
    return Refusal(
        "BUNDLE_LACKS",
        f"the plan of {service} has no image by its digest",
        "a service that could be applied on this node",
        "read its plan first: sglang-node plan",
        service,
    )


def differing(first: NodePlan, other: NodePlan) -> str | None:
    """Return what another node would need that a bundle of the first does not have, or None."""
    mine, its = _needs(first), _needs(other)
    lacking = [what for what in its if what not in mine]
    return f"{other.node} needs {', '.join(lacking)}" if lacking else None


def _needs(plan: NodePlan) -> list[str]:
    survey: Survey | None = plan.survey
    found = [str(survey.host.architecture)] if survey else []
    for one in plan.services:
        if one.environment is not None:
            found.append(f"the environment {one.environment.key}")
        else:
            found.append(one.decision.image or f"what {one.name} runs")
        if one.weights is not None:
            found.append(f"{one.weights.repo}@{one.weights.commit[:12]}")
    if plan.door is not None and plan.door.environment is not None:
        found.append(f"the door's environment {plan.door.environment.key}")
    return found


def _files(model: Weights) -> list[tuple[str, LockedFile]]:
    return [(f"{model.directory}/{file.path}", file) for file in model.files]


def manifest_of(
    made_of: Ingredients, gathered: Gathered, lock: Lock, *, node: str, now: str
) -> Manifest:
    """Return the manifest of a bundle whose files were gathered. ``now``: ISO, with its zone.

    Raises KeyError where the node did not say all of it.
    """
    images = []
    for image, index in made_of.images:
        archive, saved = gathered.files[f"{paths.BUNDLE_WORK}/{image.name}"]
        images.append(
            BundledImage(
                asked=image.asked,
                index_digest=index,
                config_digest=image.config_digest,
                saved_digest=saved,
                archive=archive,
            )
        )
    models = []
    for model in made_of.models:
        files = []
        for path, file in _files(model):
            checksum = file.sha256 or file.git_blob or ""
            content = (
                Member(sha256=file.sha256, size=file.size_bytes)
                if file.sha256
                else gathered.files[path][0]
            )
            files.append(BundledWeight(path=file.path, checksum=checksum, content=content))
        models.append(BundledModel(repo=model.repo, commit=model.commit, files=tuple(files)))
    needs = [one.lock.glibc for one in made_of.environments]
    return Manifest.model_validate(
        {
            "toolkit": VERSION,
            "made_at": now,
            "made_on": node,
            "architecture": made_of.architecture,
            "glibc": max(needs, key=lambda text: int(text.partition(".")[2]), default=None),
            "serves": made_of.serves,
            "images": images,
            "models": models,
            "environments": [_environment(one, gathered) for one in made_of.environments],
            "lock": lock.to_json(),
        }
    )


def _python_begins() -> str:
    """Return how the path of a Python's archive begins; its directory's name and .tar follow."""
    return f"{paths.BUNDLE_WORK}/python-"


def _environment(made_of: EnvironmentToBundle, gathered: Gathered) -> BundledEnvironment:
    python = gathered.pythons.get(made_of.planned.key)
    return BundledEnvironment(
        key=made_of.planned.key,
        release=made_of.planned.release,
        requirements_sha256=sha256_of(made_of.planned.requirements.encode()),
        python=_file(python.removeprefix(_python_begins()).removesuffix(".tar"), python, gathered)
        if python
        else None,
        uv=_file(uv_path().rpartition("/")[2], uv_path(), gathered),
        wheels=tuple(
            _file(one.file, f"{paths.BUNDLE_WORK}/wheels/{one.file}", gathered)
            for one in made_of.lock.packages
        ),
    )


def _file(name: str, path: str, gathered: Gathered) -> BundledFile:
    return BundledFile(name=name, content=gathered.files[path][0])


def sources(made_of: Ingredients, gathered: Gathered, manifest: Manifest) -> list[str]:
    """Return where on the node each file of the archive is, in the archive's order."""
    where = {member.sha256: path for path, (member, _) in gathered.files.items()}
    for model in made_of.models:
        for path, file in _files(model):
            if file.sha256 is not None:
                where.setdefault(file.sha256, path)
    return [where[member.sha256] for member in manifest.members]


def summary(manifest: Manifest) -> Mapping[str, object]:
    """Return what people and scripts are told of a bundle."""
    return {
        "architecture": manifest.architecture,
        "made_on": manifest.made_on,
        "serves": [one.model_dump() for one in manifest.serves],
        "images": [one.asked for one in manifest.images],
        "models": [f"{one.repo}@{one.commit}" for one in manifest.models],
        "environments": [one.key for one in manifest.environments],
        "bytes": sum(member.size for member in manifest.members),
    }
