"""A bundle's file on this machine: opened and checked, written whole or not at all."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from plans import text
from plans.bundle import (
    BLOCK,
    END,
    MANIFEST,
    MAX_MANIFEST,
    Bundle,
    BundleError,
    Manifest,
    Member,
    archive_size,
    header,
    padding,
    places,
    read_manifest,
    sha256_of,
    size_in,
)

CHUNK = 1024 * 1024
"""Bytes that are held at once, however large a file is."""


def beside(path: Path) -> Path:
    """Return the file beside a bundle that holds its manifest's SHA-256."""
    return path.with_name(f"{path.name}.sha256")


def open_bundle(path: Path, expected: str | None = None) -> Bundle:
    """Return a bundle whose manifest, names and sizes are right; contents are read as they are used.

    ``expected`` is the SHA-256 of its manifest, where it was given. Raises BundleError.
    """
    name = path.name
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            data = _manifest_of(file, name)
            sha256 = sha256_of(data)
            _check_hash(path, sha256, expected)
            manifest = read_manifest(data, name)
            wanted = archive_size(manifest, len(data))
            if size < wanted:
                raise BundleError(
                    "BUNDLE_DAMAGED",
                    f"{name} ends early: it has {size} bytes of {wanted}. Copy it again",
                )
            if size > wanted:
                raise BundleError(
                    "BUNDLE_DAMAGED", f"{name} has {size - wanted} bytes after its end"
                )
            for member, place in places(manifest, len(data)):
                file.seek(place - BLOCK)
                if file.read(BLOCK) != header(member.name, member.size):
                    raise BundleError(
                        "BUNDLE_DAMAGED", f"{name} does not have {member.name} in its place"
                    )
            file.seek(wanted - END)
            if file.read(END) != b"\0" * END:
                raise BundleError("BUNDLE_DAMAGED", f"{name} does not end as a bundle does")
    except OSError as error:
        raise BundleError(
            "BUNDLE_DAMAGED", f"{path} cannot be read: {error.strerror or error}"
        ) from None
    return Bundle(str(path), manifest, sha256, len(data), proved=expected is not None)


def _manifest_of(file: BinaryIO, name: str) -> bytes:
    size = size_in(file.read(BLOCK), MANIFEST)
    if size is None:
        raise BundleError("BUNDLE_DAMAGED", f"{name} is no bundle: it does not begin as one")
    if size > MAX_MANIFEST:
        raise BundleError("BUNDLE_DAMAGED", f"{name} has a manifest of {text.size(size)}")
    data = file.read(size)
    if len(data) < size:
        raise BundleError("BUNDLE_DAMAGED", f"{name} ends within its manifest. Copy it again")
    return data


def _check_hash(path: Path, sha256: str, expected: str | None) -> None:
    if expected is not None and expected.lower() != sha256:
        raise BundleError(
            "BUNDLE_HASH", f"{path.name} has the manifest {sha256}, and {expected} was asked for"
        )
    try:
        said = beside(path).read_text(encoding="ascii").split()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError):
        said = []
    if said[:1] != [sha256]:
        raise BundleError(
            "BUNDLE_HASH",
            f"{path.name} has the manifest {sha256}, and {beside(path).name} says another",
        )


def contents(bundle: Bundle, member: Member) -> Iterator[bytes]:
    """Give a member's content in pieces; raise BundleError at its end where it is another."""
    found = hashlib.sha256()
    left = member.size
    with Path(bundle.path).open("rb") as file:
        file.seek(bundle.places[member.sha256])
        while left:
            piece = file.read(min(CHUNK, left))
            if not piece:
                break
            left -= len(piece)
            found.update(piece)
            if not left and found.hexdigest() != member.sha256:
                break
            yield piece
    if left or found.hexdigest() != member.sha256:
        raise BundleError(
            "BUNDLE_DAMAGED",
            f"{Path(bundle.path).name} is damaged: the content of {member.name} is another. "
            "Copy it again",
        )


class _Pieces(io.RawIOBase):
    """Pieces of bytes, as a file that is read once from its beginning."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


MAX_TREE = 512 * 1024**2
"""Bytes of a packed Python: uv's builds have about 100 MB."""


def check_tree(pieces: Iterator[bytes], name: str, size: int) -> None:
    """Raise BundleError where a tar archive holds anything but files and links below ``name``.

    ``size``: of the archive. Links may lead to what is below ``name`` alone.
    """
    if size > MAX_TREE:
        raise _bad_tree(f"it has {text.size(size)}")
    try:
        # One pass, so that nothing of it is kept but names.
        with tarfile.open(fileobj=io.BufferedReader(_Pieces(pieces), CHUNK), mode="r|") as tree:
            links: set[str] = set()
            for one in tree:
                _check_entry(one, name, links)
                if one.issym():
                    links.add(os.path.normpath(one.name))
            rest = tree.fileobj
            while rest is not None and rest.read(CHUNK):
                pass
    except (tarfile.TarError, ValueError, OSError) as error:
        raise _bad_tree(str(error)) from None


def _check_entry(one: tarfile.TarInfo, name: str, links: set[str]) -> None:
    if not _below(one.name, name):
        raise _bad_tree(f"{one.name!a} leads out of it")
    path = os.path.normpath(one.name)
    while path := os.path.dirname(path):
        # What is written through a link would be wherever that leads.
        if path in links:
            raise _bad_tree(f"{one.name!a} lies behind a link")
    if one.issym() or one.islnk():
        start = os.path.dirname(one.name) if one.issym() else ""
        to = os.path.normpath(os.path.join(start, one.linkname))
        if one.linkname.startswith("/") or not _below(to, name):
            raise _bad_tree(f"{one.name!a} is a link to {one.linkname!a}, out of it")
    elif not (one.isreg() or one.isdir()):
        raise _bad_tree(f"{one.name!a} is neither file nor directory nor link")


def _below(path: str, name: str) -> bool:
    parts = path.split("/")
    return parts[0] == name and ".." not in parts and "\0" not in path


def _bad_tree(why: str) -> BundleError:
    return BundleError("BUNDLE_DAMAGED", f"the Python in it is none that was packed here: {why}")


def room_for(path: Path, manifest: Manifest) -> str | None:
    """Return why a bundle does not fit where it shall be written, or None where it does."""
    needed = archive_size(manifest, len(manifest.to_bytes()))
    folder = path.absolute().parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"{folder} cannot be written to: {error.strerror}"
    if free < needed:
        return f"{text.size(free)} free in {folder}, and the bundle has {text.size(needed)}"
    return None


class Writer:
    """Writes a bundle beside its place; ``finish`` renames it there, ``discard`` takes it away."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.part = path.with_name(f"{path.name}.part")
        self._manifest = manifest.to_bytes()
        self._members = iter(manifest.members)
        self._file = self.part.open("wb")
        self._left = 0
        self._member: Member | None = None
        self._found = hashlib.sha256()
        self._put(header(MANIFEST, len(self._manifest)))
        self._put(self._manifest + b"\0" * padding(len(self._manifest)))
        self._next()

    def write(self, data: bytes) -> None:
        """Take the next bytes of the members' contents, which come in a row.

        Raises BundleError where a content is not what the manifest says, OSError where the disk
        does not take it.
        """
        view = memoryview(data)
        while len(view):
            if self._member is None:
                raise BundleError("BUNDLE_FAILED", "the node sent more than its files have")
            piece = view[: self._left]
            view = view[self._left :]
            self._found.update(piece)
            self._file.write(piece)
            self._left -= len(piece)
            if not self._left:
                self._end_member()

    def finish(self) -> str:
        """Put the bundle in its place, its manifest's SHA-256 beside it; return that."""
        if self._member is not None:
            raise BundleError("BUNDLE_FAILED", "the node sent less than its files have")
        self._put(b"\0" * END)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        sha256 = sha256_of(self._manifest)
        said = beside(self.path)
        new = said.with_name(f"{said.name}.new")
        new.write_text(f"{sha256}  {MANIFEST}\n", encoding="ascii")
        # Without this between the two renames an old bundle would stand under a new hash.
        said.unlink(missing_ok=True)
        os.replace(self.part, self.path)
        os.replace(new, said)
        return sha256

    def discard(self) -> None:
        """Leave nothing of a bundle that did not become whole."""
        with suppress(OSError):  # on a full disk what is still to be written cannot be
            self._file.close()
        self.part.unlink(missing_ok=True)

    def _next(self) -> None:
        for member in self._members:
            self._put(header(member.name, member.size))
            self._member, self._left, self._found = member, member.size, hashlib.sha256()
            if member.size:
                return
            self._end_member_alone(member)
        self._member = None

    def _end_member(self) -> None:
        assert self._member is not None
        self._end_member_alone(self._member)
        self._next()

    def _end_member_alone(self, member: Member) -> None:
        if self._found.hexdigest() != member.sha256:
            raise BundleError("BUNDLE_FAILED", f"{member.name} changed while it was read")
        self._put(b"\0" * padding(member.size))

    def _put(self, data: bytes) -> None:
        self._file.write(data)
