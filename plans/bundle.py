"""What a bundle is: the manifest in it, and the form of the archive around that.

A bundle is a plain tar archive: ``manifest.json`` first, then each file under the name
``sha256/HEX``, in the manifest's order. Names, sizes and places of all of it follow from the
manifest, so nothing in an archive is believed: its headers are the ones that are written here,
byte by byte, or it is no bundle. The manifest's own SHA-256 stands for all of it.

Pure: reading and writing are done elsewhere. Sizes are bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from locks.records import (
    Architecture,
    Bytes,
    Digest,
    Line,
    Lock,
    Record,
    RelativePath,
    Time,
    Word,
)
from plans import paths
from plans.refusals import Refusal

SCHEMA: Final = 1

MANIFEST: Final = "manifest.json"

BLOCK: Final = 512
"""Bytes of a header, and what a file's content is padded to (POSIX ustar)."""

END: Final = 2 * BLOCK
"""Bytes of zeros at the end of an archive."""

MAX_MANIFEST: Final = 64 * 1024 * 1024
"""Far above any real manifest: a model of 1000 files takes 400 kB with its lock."""

Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!-]*$", max_length=240)]


class BundleError(Exception):
    """A file that is no bundle, or no whole one: a stable code, and a sentence."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(f"{code}: {sentence}")
        self.code = code
        self.sentence = sentence

    @property
    def refusal(self) -> Refusal:
        """The refusal that it is for a node."""
        return Refusal(
            self.code,
            self.sentence,
            "the bundle as it was made, whole",
            "copy it again from where it was made, or make it anew: sglang-node bundle",
        )


class Member(Record):
    """One file of the archive, known by its content."""

    sha256: Hex
    size: Bytes

    @property
    def name(self) -> str:
        """Its name in the archive."""
        return f"sha256/{self.sha256}"


class BundledImage(Record):
    """An image, as ``docker save`` wrote it.

    ``config_digest`` is the digest of its configuration, which covers every layer's content;
    ``saved_digest`` that of the manifest in the archive, where Docker wrote one.
    """

    asked: Word
    index_digest: Digest
    config_digest: Digest
    saved_digest: Digest | None
    archive: Member


class BundledWeight(Record):
    """One file of a model; ``checksum`` is the lock's: SHA-256, or that of a git blob."""

    path: RelativePath
    checksum: Annotated[str, Field(pattern=r"^(?:[0-9a-f]{64}|[0-9a-f]{40})$")]
    content: Member


class BundledModel(Record):
    """The files of a hub model at a commit that a service needs."""

    repo: Word
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    files: tuple[BundledWeight, ...]


class BundledFile(Record):
    """A file that is found by its name, such as a wheel."""

    name: FileName
    content: Member


class BundledEnvironment(Record):
    """What an environment is built from: its wheels, uv, and the Python that uv installed.

    ``python`` is a tar archive of that Python's directory, whose name it has; None where the node
    that made the bundle ran on its distribution's.
    """

    key: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    release: Word
    requirements_sha256: Hex  # of the text that uv installs, hashes of the wheels in it
    python: BundledFile | None
    uv: BundledFile
    wheels: tuple[BundledFile, ...]


class Served(Record):
    """One service that the bundle was made for."""

    name: Word
    model: Line
    release: Word
    runtime: Literal["image", "wheel"]


class Manifest(Record):
    """Everything that is in a bundle, and where it fits."""

    schema_version: Literal[1] = SCHEMA
    toolkit: Word
    made_at: Time
    made_on: Word  # the node
    architecture: Architecture
    glibc: Annotated[str, Field(pattern=r"^2\.[0-9]+$")] | None  # that its wheels need
    serves: tuple[Served, ...]
    images: tuple[BundledImage, ...] = ()
    models: tuple[BundledModel, ...] = ()
    environments: tuple[BundledEnvironment, ...] = ()
    lock: dict[str, Any]

    @model_validator(mode="after")
    def one_size_each(self) -> Self:
        sizes: dict[str, int] = {}
        for member in _named(self):
            if sizes.setdefault(member.sha256, member.size) != member.size:
                raise ValueError(f"{member.sha256} has two sizes")
        Lock.model_validate(self.lock)
        return self

    @property
    def locked(self) -> Lock:
        """The lock that everything in it was made from."""
        return Lock.model_validate(self.lock)

    @property
    def members(self) -> tuple[Member, ...]:
        """Every file of the archive, in its order, each content once."""
        return tuple({member.sha256: member for member in _named(self)}.values())

    def to_bytes(self) -> bytes:
        """Return the bytes of ``manifest.json``: the same manifest always gives the same."""
        text = json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True)
        return (text + "\n").encode("ascii")


def _named(manifest: Manifest) -> Iterator[Member]:
    for environment in manifest.environments:
        yield from files_of(environment)
    for image in manifest.images:
        yield image.archive
    for model in manifest.models:
        yield from (file.content for file in model.files)


@dataclass(frozen=True)
class Bundle:
    """A bundle that was opened: where it is, its manifest, and the manifest's SHA-256."""

    path: str
    manifest: Manifest
    sha256: str
    manifest_size: int
    proved: bool = False  # its hash was given beside it, as the one that was made

    @property
    def places(self) -> dict[str, int]:
        """Where each member's content begins in the archive, by its SHA-256."""
        found = places(self.manifest, self.manifest_size)
        return {member.sha256: place for member, place in found}


@dataclass(frozen=True)
class Taken:
    """What one service of a node takes from a bundle, because the node does not have it."""

    bundle: Bundle
    image: BundledImage | None = None
    runs_as: str | None = None  # what Docker calls the image once it is loaded
    weights: tuple[BundledWeight, ...] = ()
    blobs: str = ""  # directory of the hub's cache that they go to
    environment: BundledEnvironment | None = None

    @property
    def directory(self) -> str:
        """Where on the node its files lie until they are in their places."""
        return paths.bundle(self.bundle.sha256)

    @property
    def wheels(self) -> str | None:
        """Where on the node uv finds the wheels; None where no environment is built."""
        return f"{self.directory}/wheels" if self.environment else None

    @property
    def members(self) -> tuple[Member, ...]:
        """What is sent, each content once."""
        found: list[Member] = []
        if self.environment is not None:
            found += files_of(self.environment)
        if self.image is not None:
            found.append(self.image.archive)
        found += [weight.content for weight in self.weights]
        return tuple({member.sha256: member for member in found}.values())

    @property
    def size(self) -> int:
        """Bytes that are sent at most."""
        return sum(member.size for member in self.members)


def files_of(environment: BundledEnvironment) -> list[Member]:
    """Return the files that an environment is built from."""
    python = (environment.python,) if environment.python else ()
    return [file.content for file in (environment.uv, *python, *environment.wheels)]


def read_manifest(data: bytes, name: str) -> Manifest:
    """Return the manifest in these bytes; ``name`` is the file's, for the message.

    Raises BundleError.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise BundleError("BUNDLE_DAMAGED", f"the manifest of {name} is no JSON") from None
    version = document.get("schema_version") if isinstance(document, dict) else None
    if isinstance(version, int) and not isinstance(version, bool) and version > SCHEMA:
        raise BundleError(
            "BUNDLE_DAMAGED",
            f"{name} has schema {version}, and this sglang-node knows {SCHEMA}: a newer one made "
            "it. Update sglang-node",
        )
    try:
        return Manifest.model_validate(document)
    except (ValidationError, RecursionError) as error:
        said = "it is nested too deeply"
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            said = f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"
        raise BundleError(
            "BUNDLE_DAMAGED", f"the manifest of {name} is no bundle's ({said[:300]})"
        ) from None


def header(name: str, size: int) -> bytes:
    """Return the header of a file in the archive: root's, mode 0644, of no time.

    A size of 8 GiB and more is written in base 256, as GNU tar and busybox do.
    """
    octal = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    fields = (
        name.encode("ascii").ljust(100, b"\0"),
        b"0000644\0",
        b"0000000\0",
        b"0000000\0",
        octal,
        b"%011o\0" % 0,
        b" " * 8,  # the checksum counts its own field as blanks
        b"0",
        b"\0" * 100,
        b"ustar\0" + b"00",
        b"root".ljust(32, b"\0"),
        b"root".ljust(32, b"\0"),
        b"0000000\0",
        b"0000000\0",
        b"\0" * 155,
        b"\0" * 12,
    )
    block = b"".join(fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def size_in(block: bytes, name: str) -> int | None:
    """Return the size in a header of ours for ``name``, or None where it is not such a header."""
    field = block[124:136]
    if field[:1] == b"\x80":
        size = int.from_bytes(field[1:], "big")
    elif re.fullmatch(rb"[0-7]{11}\0", field):
        size = int(field[:-1], 8)
    else:
        return None
    return size if block == header(name, size) else None


def padding(size: int) -> int:
    """Return the bytes of zeros after a content of that size."""
    return -size % BLOCK


def places(manifest: Manifest, manifest_size: int) -> Iterator[tuple[Member, int]]:
    """Give each member, and where its content begins in the archive.

    ``manifest_size``: bytes of ``manifest.json`` as it is in the archive.
    """
    at = BLOCK + manifest_size + padding(manifest_size)
    for member in manifest.members:
        yield member, at + BLOCK
        at += BLOCK + member.size + padding(member.size)


def archive_size(manifest: Manifest, manifest_size: int) -> int:
    """Return the bytes of the whole archive."""
    files = sum(BLOCK + one.size + padding(one.size) for one in manifest.members)
    return BLOCK + manifest_size + padding(manifest_size) + files + END


def sha256_of(data: bytes) -> str:
    """Return the SHA-256 of some bytes, as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
