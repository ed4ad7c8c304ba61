"""What stands in `sglang.lock`, as frozen records, and the look-ups a plan makes in it.

Pure: nothing here reads a file, a clock or the network (`lockfile` does the files). Sizes are
bytes. Digests, commits and sizes come from the registry and the hub, never from a person.
"""

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)

from locks.references import ReferenceRefused, parse_reference

SCHEMA_VERSION: Final = 2
"""2 has FlashInfer's kernels. A lock without any is written as 1 is, and read as before."""

Architecture = Literal["x86_64", "aarch64"]
Platform = Literal["linux/amd64", "linux/arm64"]

# The name a kernel gives a machine (`uname -m`) and the one that registries use for it.
PLATFORM_OF: dict[Architecture, Platform] = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}

# FlashInfer's packages of precompiled kernels: the first leads to providers, one for each GPU
# architecture; the second is for all of them.
SHIM: Final = "flashinfer-jit-cache"
CUBIN: Final = "flashinfer-cubin"

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
MediaType = Annotated[str, Field(pattern=r"^[a-z0-9.+-]+/[a-zA-Z0-9.+_-]+$", max_length=200)]
Bytes = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$", max_length=4000)]
Word = Annotated[str, Field(pattern=r"^[^\x00-\x20\x7f-\x9f]+$", max_length=800)]


def iso_time(text: str) -> str:
    """Return `text` when it is an ISO 8601 time that says its zone; ValueError otherwise."""
    try:
        zone = datetime.fromisoformat(text).tzinfo
    except ValueError:
        zone = None
    if zone is None:
        raise ValueError(f"{text!a} is not an ISO time with a zone, such as 2026-01-31T12:00:00Z")
    return text


def inside(path: str) -> str:
    """Return `path` when it is relative and stays below where it is joined; else ValueError."""
    if "\\" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"{path!a} is not a plain path below the model's own directory")
    return path


Time = Annotated[Line, AfterValidator(iso_time)]
RelativePath = Annotated[Line, AfterValidator(inside)]


class Record(BaseModel):
    """A frozen record that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PlatformImage(Record):
    """One image for one architecture. `compressed_bytes`: what a pull transfers."""

    manifest_digest: Digest
    manifest_media_type: MediaType
    config_digest: Digest
    config_media_type: MediaType
    compressed_bytes: Bytes


class LockedImage(Record):
    """What an image reference meant when it was resolved.

    `asked` is the reference as the operator wrote it; `registry` the registry's name (`docker.io`,
    not the host behind it); `index_digest` what `asked` pointed to: the index over all platforms,
    or the manifest itself where an image has no index. `answered_by` is the host that said so: the
    registry's own or a mirror's. An image pinned by digest whose registry could not be asked has
    no platforms, no media type and no `answered_by` yet.
    """

    asked: Word
    registry: Word
    repository: Word
    tag: Word | None
    index_digest: Digest
    index_media_type: MediaType | None
    platforms: dict[Platform, PlatformImage]
    answered_by: Word | None
    resolved_at: Time

    @property
    def pinned(self) -> str:
        """The reference to pull: registry, repository and digest, never a tag."""
        return f"{self.registry}/{self.repository}@{self.index_digest}"

    def for_architecture(self, architecture: str) -> PlatformImage | None:
        """Return the image for `x86_64` or `aarch64`; None when there is none or it is unknown."""
        for name, platform in PLATFORM_OF.items():
            if name == architecture:
                return self.platforms.get(platform)
        return None

    def architectures(self) -> tuple[Architecture, ...]:
        """Return the architectures this image is there for, by the kernel's names."""
        return tuple(name for name, platform in PLATFORM_OF.items() if platform in self.platforms)


class LockedFile(Record):
    """One file of a model: its size, and `sha256` (stored by LFS) or `git_blob` (in git)."""

    path: RelativePath
    size_bytes: Bytes
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    git_blob: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None

    @model_validator(mode="after")
    def one_checksum(self) -> Self:
        if (self.sha256 is None) == (self.git_blob is None):
            raise ValueError("a file has either sha256 or git_blob")
        return self


class LockedModel(Record):
    """What a model's revision meant when it was resolved: a commit and its files.

    `config` is what is kept of its config.json, `index_bytes` the bytes of all weights as their
    index says; `config_why` says why one of them is not known. Locks of older toolkits have none.
    """

    repo: Word
    asked_revision: Word
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    files: tuple[LockedFile, ...]
    resolved_at: Time
    config: dict[str, JsonValue] | None = None
    index_bytes: Bytes | None = None
    config_why: Line | None = None

    @model_validator(mode="after")
    def each_path_once(self) -> Self:
        if len({file.path for file in self.files}) != len(self.files):
            raise ValueError("a path stands twice in files")
        return self

    @property
    def total_bytes(self) -> int:
        """The size of all files together, bytes."""
        return sum(file.size_bytes for file in self.files)


class Unresolved(Record):
    """What could not be resolved: its key, the code and sentence of why, the command that helps."""

    kind: Literal["image", "model", "kernels"]
    what: Word
    code: Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$", max_length=60)]
    why: Line
    command: Line


class LockedWheel(Record):
    """A file of FlashInfer's index. `hash_from`: its link said the hash, or it was downloaded."""

    name: Word
    version: Word
    file: Word
    hash: Digest
    hash_from: Literal["link", "download"]
    size_bytes: Bytes | None = None


class LockedKernels(Record):
    """FlashInfer's precompiled kernels of one version and CUDA release, for every architecture.

    `index`: the address that was asked. Of each package it has the files for all Pythons and CPU
    architectures: a plan takes what its node needs.
    """

    version: Word
    cuda: Annotated[str, Field(pattern=r"^\d+\.\d+$")]
    index: Word
    wheels: tuple[LockedWheel, ...]
    resolved_at: Time

    @property
    def key(self) -> str:
        """What it stands under in a lock: `flashinfer-jit-cache==0.7.2+cu130`."""
        return kernels_key(self.version, self.cuda)


def _current(version: object) -> object:
    """An older lock is read as one of this version: it says nothing that this one does not."""
    return SCHEMA_VERSION if type(version) is int and version == 1 else version


class Lock(Record):
    """A whole `sglang.lock`.

    Images by reference as asked; models by `repo@revision`; FlashInfer's kernels by version and
    CUDA release.
    """

    schema_version: Annotated[Literal[2], BeforeValidator(_current)] = SCHEMA_VERSION
    images: dict[Word, LockedImage] = Field(default_factory=dict)
    models: dict[Word, LockedModel] = Field(default_factory=dict)
    kernels: dict[Word, LockedKernels] = Field(default_factory=dict)
    unresolved: tuple[Unresolved, ...] = ()

    @model_validator(mode="after")
    def keys_agree(self) -> Self:
        for key, image in self.images.items():
            if key != image.asked:
                raise ValueError(f"images: the key {key!a} is not what its entry was asked for")
        for key, model in self.models.items():
            if key != model_key(model.repo, model.asked_revision):
                raise ValueError(f"models: the key {key!a} is not what its entry was asked for")
        for key, kernels in self.kernels.items():
            if key != kernels.key:
                raise ValueError(f"kernels: the key {key!a} is not what its entry was asked for")
        return self

    def image(self, tag: str) -> LockedImage | None:
        """Return what is locked for `tag`, also when it is spelled another way; None if nothing.

        `lmsysorg/sglang:v1` and `docker.io/lmsysorg/sglang:v1` are the same reference.
        """
        if tag in self.images:
            return self.images[tag]
        wanted = _canonical(tag)
        for key, image in self.images.items():
            if wanted is not None and _canonical(key) == wanted:
                return image
        return None

    def model(self, repo: str, revision: str) -> LockedModel | None:
        """Return what is locked for this model and revision as asked; None if nothing."""
        return self.models.get(model_key(repo, revision))

    def why_not(self, what: str) -> Unresolved | None:
        """Return why `what` (an image reference or `repo@revision`) is unresolved; None if not."""
        return next((one for one in self.unresolved if one.what == what), None)

    def to_json(self) -> dict[str, Any]:
        """Return the lock as plain data with a stable order: keys and paths sorted."""
        kernels = {key: _kernels_json(self.kernels[key]) for key in sorted(self.kernels)}
        newer = kernels or any(one.kind == "kernels" for one in self.unresolved)
        return {
            "schema_version": SCHEMA_VERSION if newer else 1,
            "images": {key: _image_json(self.images[key]) for key in sorted(self.images)},
            "models": {key: _model_json(self.models[key]) for key in sorted(self.models)},
            **({"kernels": kernels} if kernels else {}),
            "unresolved": [
                one.model_dump() for one in sorted(self.unresolved, key=lambda u: (u.kind, u.what))
            ],
        }


def model_key(repo: str, revision: str) -> str:
    """Return the key under which a model stands in a lock."""
    return f"{repo}@{revision}"


def kernels_key(version: str, cuda: str) -> str:
    """Return the key of FlashInfer's kernels in a lock: `flashinfer-jit-cache==0.7.2+cu130`."""
    return f"{SHIM}=={version}+{cuda_label(cuda)}"


def cuda_label(cuda: str) -> str:
    """Return a CUDA release as FlashInfer's index writes it: `cu130` of `13.0`."""
    return "cu" + cuda.replace(".", "")


def is_commit(revision: str) -> bool:
    """Whether `revision` is a whole commit (40 hexadecimal digits) and can no longer move."""
    return re.fullmatch(r"[0-9a-f]{40}", revision) is not None


def _canonical(text: str) -> str | None:
    try:
        return parse_reference(text).canonical
    except ReferenceRefused:
        return None


def _image_json(image: LockedImage) -> dict[str, Any]:
    data = image.model_dump()
    data["platforms"] = {key: data["platforms"][key] for key in sorted(data["platforms"])}
    return data


def _model_json(model: LockedModel) -> dict[str, Any]:
    data = model.model_dump(exclude_none=True)
    data["files"] = sorted(data["files"], key=lambda file: str(file["path"]))
    return data


def _kernels_json(kernels: LockedKernels) -> dict[str, Any]:
    data = kernels.model_dump(exclude_none=True)
    data["wheels"] = sorted(data["wheels"], key=lambda wheel: (wheel["name"], wheel["file"]))
    return data
