"""Making a lock: what is asked for, what is known already, and the outside world for the rest."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from locks.hub import HubError, HubOptions, check_model, resolve_model
from locks.records import (
    Architecture,
    Lock,
    LockedImage,
    LockedModel,
    Unresolved,
    iso_time,
    model_key,
)
from locks.references import Reference, parse_reference
from locks.registry import RegistryClient, RegistryError, RegistryOptions, check_architecture


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


def make_lock(
    images: Sequence[ImageRequest],
    models: Sequence[ModelRequest],
    *,
    now: str,
    existing: Lock | None = None,
    registry_options: RegistryOptions | None = None,
    hub_options: HubOptions | None = None,
    progress: Callable[[str], None] = lambda line: None,
    refresh: bool = False,
    prune: bool = True,
    target: str = "TARGET",
) -> Lock:
    """Return a lock with everything that is asked for and can be resolved.

    What `existing` knows is kept without asking anybody, unless `refresh`; a refresh that fails
    keeps it too. What is no longer asked for goes, unless `prune` is False (two inventories that
    share a lock). What cannot be resolved stands in `unresolved`, with the command that helps
    (`target` is what that command is given). `now`: ISO time with zone. `progress` takes a line per
    step. Raises ReferenceRefused, ModelRefused or ValueError for bad input, before asking anybody.
    """
    iso_time(now)
    wanted_images = _merged(images)
    wanted_models = list(dict.fromkeys((model.repo, model.revision) for model in models))
    for repo, revision in wanted_models:
        check_model(repo, revision)
    client = RegistryClient(registry_options, progress)
    work = _Work(now, existing or Lock(), refresh, target, progress)
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
    left = [] if prune else work.unresolved_elsewhere(wanted_images, wanted_models)
    return Lock(images=found_images, models=found_models, unresolved=(*left, *work.unresolved))


class _Work:
    """One run: what is known, what could not be resolved so far."""

    def __init__(
        self,
        now: str,
        existing: Lock,
        refresh: bool,
        target: str,
        progress: Callable[[str], None],
    ) -> None:
        self.existing = existing
        self.unresolved: list[Unresolved] = []
        self._now = now
        self._refresh = refresh
        self._target = target
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

    def unresolved_elsewhere(
        self,
        images: list[tuple[Reference, tuple[Architecture, ...]]],
        models: list[tuple[str, str]],
    ) -> list[Unresolved]:
        """What an earlier run could not resolve and this one was not asked for."""
        asked = {reference.asked for reference, _ in images}
        asked |= {model_key(repo, revision) for repo, revision in models}
        return [one for one in self.existing.unresolved if one.what not in asked]

    def _not_resolved(
        self,
        kind: str,
        what: str,
        code: str,
        error: Exception,
        first: str | None,
    ) -> None:
        again = f"sglang-node lock {shlex.quote(self._target)}"
        command = f"{first} && {again}" if first else again
        self.unresolved.append(
            Unresolved(
                kind="image" if kind == "image" else "model",
                what=what,
                code=code,
                why=_line(str(error)),
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
