"""Wheels that this harness writes: small ones of its own, and real ones without their libraries."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

# Every file of a wheel is from then: the same content gives the same hash on every machine.
THEN = (2026, 1, 1, 0, 0, 0)


def write_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str], tag: str = "py3-none-any"
) -> Path:
    """Write the wheel of package `name` with `files` (path in it: text) into `folder`."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    content = {path: text.encode() for path, text in files.items()}
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    content[f"{info}/METADATA"] = head.encode()
    content[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    )
    wheel = folder / f"{stem}-{tag}.whl"
    _write(wheel, info, content)
    return wheel


def without(wheel: Path, into: Path, left_out: Callable[[str], bool]) -> Path:
    """Write the wheel again into `into`, without the files whose path `left_out` says yes to."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith(("/", "/RECORD"))]
        content = {name: archive.read(name) for name in names if not left_out(name)}
    info = next(name for name in content if name.endswith(".dist-info/METADATA"))
    thin = into / wheel.name
    _write(thin, info.partition("/")[0], content)
    return thin


def metadata(wheel: Path) -> bytes:
    """The METADATA of a wheel, which an index serves beside it."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        own = next(n for n in names if n.count("/") == 1 and n.endswith(".dist-info/METADATA"))
        return archive.read(own)


def _write(wheel: Path, info: str, content: Mapping[str, bytes]) -> None:
    record = "".join(
        f"{path},sha256={_urlsafe(hashlib.sha256(data).digest())},{len(data)}\n"
        for path, data in content.items()
    )
    record += f"{info}/RECORD,,\n"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        for path, data in {**content, f"{info}/RECORD": record.encode()}.items():
            entry = zipfile.ZipInfo(path, THEN)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)


def _urlsafe(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
