"""Making a lock: what is asked for, what is known already, and the outside world for the rest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from locks.hub import HubError, HubOptions, check_model, resolve_model
from locks.index import KernelProblem
from locks.kernels import KernelOptions, kernels_words, resolve_kernels
from locks.records import (
    Architecture,
    Lock,
    LockedImage,
    LockedKernels,
    LockedModel,
    Unresolved,
    iso_time,
    kernels_key,
    model_key,
)
from locks.references import Reference, parse_reference
from locks.registry import RegistryClient, RegistryError, RegistryOptions, check_architecture

AGAIN = "sglang-node lock TARGET"
"""The command that tries again. Whoever reads a lock may have another inventory than who made it."""


@dataclass(frozen=True)
class ImageRequest:
    """An image somebody wants, and the architectures (`uname -m`) of the nodes that want it."""

    reference: str
    architectures: tuple[Architecture, ...] = ()


@dataclass(frozen=True)
class ModelRequest:
    """A model somebody wants: repository on the hub, and branch, tag or commit."""

    repo: str
    revision: str = "main"


@dataclass(frozen=True)
class KernelRequest:
    """FlashInfer's kernels that somebody wants: its version, and the CUDA release (`13.0`)."""

    version: str
    cuda: str


def make_lock(
    images: Sequence[ImageRequest],
    models: Sequence[ModelRequest],
    *,
    now: str,
    existing: Lock | None = None,
    registry_options: RegistryOptions | None = None,
    hub_options: HubOptions | None = None,
    kernels: Sequence[KernelRequest] = (),
    kernel_options: KernelOptions | None = None,
    progress: Callable[[str], None] = lambda line: None,
    refresh: bool = False,
    prune: bool = True,
) -> Lock:
    """Return a lock with everything that is asked for and can be resolved.

    What `existing` knows is kept without asking anybody, unless `refresh`; a refresh that fails
    keeps it too. What is no longer asked for goes, unless `prune` is False (two inventories that
    share a lock). What cannot be resolved stands in `unresolved`, with the command that helps.
    `now`: ISO time with zone. `progress` takes a line per step. Raises ReferenceRefused,
    ModelRefused or ValueError for bad input, before asking anybody.
    """
    iso_time(now)
    wanted_images = _merged(images)
    wanted_models = list(dict.fromkeys((model.repo, model.revision) for model in models))
    for repo, revision in wanted_models:
        check_model(repo, revision)
    client = RegistryClient(registry_options, progress)
    work = _Work(now, existing or Lock(), refresh, progress)
    found_images = {} if prune else dict(work.existing.images)
    for reference, architectures in wanted_images:
        image = work.image(client, reference, architectures)
        if image is not None:
            found_images[reference.asked] = image
    found_models = {} if prune else dict(work.existing.models)
    for repo, revision in wanted_models:
        model = work.model(repo, revision, hub_options)
        if model is not None:
            found_models[model_key(repo, revision)] = model
    found_kernels = {} if prune else dict(work.existing.kernels)
    for one in dict.fromkeys(kernels):
        there = work.kernels(one, kernel_options or KernelOptions())
        if there is not None:
            found_kernels[there.key] = there
    left = [] if prune else work.unresolved_elsewhere(wanted_images, wanted_models, kernels)
    return Lock(
        images=found_images,
        models=found_models,
        kernels=found_kernels,
        unresolved=(*left, *work.unresolved),
    )


class _Work:
    """One run: what is known, what could not be resolved so far."""

    def __init__(
        self,
        now: str,
        existing: Lock,
        refresh: bool,
        progress: Callable[[str], None],
    ) -> None:
        self.existing = existing
        self.unresolved: list[Unresolved] = []
        self._now = now
        self._refresh = refresh
        self._say = progress

    def image(
        self, client: RegistryClient, reference: Reference, architectures: tuple[Architecture, ...]
    ) -> LockedImage | None:
        """Keep or resolve one image, and note the architectures that it is not there for."""
        asked = reference.asked
        known = self.existing.image(asked)
        if known is not None and known.asked != asked:
            known = known.model_copy(update={"asked": asked})
        whole = known is not None and bool(known.platforms)
        try:
            if (
                known is None
                or not whole
                or (self._refresh and self._moved(client, reference, known))
            ):
                known = client.resolve(reference, now=self._now)
                self._say(f"{asked} is {known.index_digest}")
        except RegistryError as error:
            self._not_resolved("image", asked, error.code, error, error.command)
            if known is not None:
                self._say(f"{asked} stays as it was locked: {known.index_digest}")
            return known or self._by_digest(reference)
        for architecture in architectures:
            try:
                check_architecture(reference, known, architecture)
            except RegistryError as error:
                self._not_resolved("image", asked, error.code, error, error.command)
        return known

    def _moved(self, client: RegistryClient, reference: Reference, known: LockedImage) -> bool:
        digest = client.digest(reference)
        if digest == known.index_digest:
            self._say(f"{reference.asked} has not moved")
            return False
        self._say(f"{reference.asked} moved: {known.index_digest} → {digest}")
        return True

    def _by_digest(self, reference: Reference) -> LockedImage | None:
        """A reference pinned by digest is known without a registry; its platforms are not."""
        if reference.digest is None:
            return None
        return LockedImage(
            asked=reference.asked,
            registry=reference.registry,
            repository=reference.repository,
            tag=reference.tag,
            index_digest=reference.digest,
            index_media_type=None,
            platforms={},
            answered_by=None,
            resolved_at=self._now,
        )

    def model(self, repo: str, revision: str, options: HubOptions | None) -> LockedModel | None:
        """Keep or resolve one model."""
        key = model_key(repo, revision)
        known = self.existing.model(repo, revision)
        if known is not None and not self._refresh:
            return known
        try:
            found = resolve_model(repo, revision, now=self._now, options=options)
        except HubError as error:
            self._not_resolved("model", key, error.code, error, error.command)
            if known is not None:
                self._say(f"{key} stays as it was locked: {known.commit}")
            return known
        if known is None:
            self._say(f"{key} is commit {found.commit}, {found.total_bytes} bytes")
        elif known.commit != found.commit:
            self._say(f"{key} moved: {known.commit} → {found.commit}")
        elif known.files == found.files:
            self._say(f"{key} has not moved")
            # A lock of an older toolkit gets its config this way; one that has it keeps it.
            return known if found.config is None or found.config == known.config else found
        return found

    def kernels(self, one: KernelRequest, options: KernelOptions) -> LockedKernels | None:
        """Keep or resolve FlashInfer's kernels of one version and CUDA release."""
        key = kernels_key(one.version, one.cuda)
        known = self.existing.kernels.get(key)
        if known is not None and not self._refresh:
            return known
        try:
            found = resolve_kernels(
                one.version, one.cuda, now=self._now, options=options, progress=self._say
            )
        except KernelProblem as error:
            self._not_resolved("kernels", key, error.code, error, None)
            if known is not None:
                self._say(f"{key} stays as it was locked")
            return known
        if known is not None and (known.wheels, known.index) == (found.wheels, found.index):
            self._say(f"{key} has not moved")
            return known
        self._say(kernels_words(found))
        return found

    def unresolved_elsewhere(
        self,
        images: list[tuple[Reference, tuple[Architecture, ...]]],
        models: list[tuple[str, str]],
        kernels: Sequence[KernelRequest],
    ) -> list[Unresolved]:
        """What an earlier run could not resolve and this one was not asked for."""
        asked = {reference.asked for reference, _ in images}
        asked |= {model_key(repo, revision) for repo, revision in models}
        asked |= {kernels_key(one.version, one.cuda) for one in kernels}
        return [one for one in self.existing.unresolved if one.what not in asked]

    def _not_resolved(
        self,
        kind: Literal["image", "model", "kernels"],
        what: str,
        code: str,
        error: Exception,
        first: str | None,
    ) -> None:
        why = _line(str(error))
        # Where the sentence says what to run first, once is enough.
        command = f"{first} && {AGAIN}" if first and first not in why else AGAIN
        self.unresolved.append(
            Unresolved(
                kind=kind,
                what=what,
                code=code,
                why=why,
                command=_line(command),
            )
        )
        self._say(f"{what} is unresolved ({code}): {error}")


def _line(text: str) -> str:
    """Make one line that a lock may hold of any text (a path may have odd characters)."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return "".join(letter if letter.isprintable() else " " for letter in text)[:4000]


def _merged(images: Sequence[ImageRequest]) -> list[tuple[Reference, tuple[Architecture, ...]]]:
    """Each reference once, with the architectures that all its requests want."""
    wanted: dict[str, tuple[Architecture, ...]] = {}
    for image in images:
        before = wanted.get(image.reference, ())
        wanted[image.reference] = tuple(dict.fromkeys((*before, *image.architectures)))
    return [(parse_reference(text), architectures) for text, architectures in wanted.items()]
