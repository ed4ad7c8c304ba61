"""uv as the controller brings it: out of its wheel, checked against the hashes it is locked by."""

from __future__ import annotations

import gzip
import hashlib
import zipfile
from pathlib import Path

import pytest

from operations import tool_wheels
from operations.tool_wheels import ToolMissing, fetch_uv
from releases.wheels.tools import Tool, uv

PROGRAM = b"\x7fELF" + bytes(range(256)) * 500


def wheel(folder: Path, content: bytes = PROGRAM) -> Path:
    path = folder / "uv-1.2.3-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("uv/__init__.py", "")
        archive.writestr("uv-1.2.3.data/scripts/uv", content)
    return path


def locked(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    tool = Tool("uv", "1.2.3", frozenset({hashlib.sha256(path.read_bytes()).hexdigest()}))
    monkeypatch.setattr(tool_wheels, "uv", lambda: tool)


def test_the_program_travels_as_gzip_and_is_what_the_wheel_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked(monkeypatch, wheel(tmp_path))
    brought = fetch_uv("x86_64", cache=tmp_path)
    assert gzip.decompress(brought.compressed) == PROGRAM
    assert brought.sha256 == hashlib.sha256(PROGRAM).hexdigest()


def test_a_kept_wheel_that_is_another_one_is_never_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = wheel(tmp_path)
    locked(monkeypatch, there)
    wheel(tmp_path, b"something else")
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(ToolMissing, match="could not be fetched"):
        fetch_uv("x86_64", cache=tmp_path)
    assert not there.exists()


def test_an_architecture_without_uv_is_said() -> None:
    with pytest.raises(ToolMissing, match="riscv64"):
        fetch_uv("riscv64")


def test_the_lock_of_uv_has_a_version_and_the_hash_of_each_of_its_files() -> None:
    assert uv().version.count(".") == 2
    assert len(uv().hashes) > 10
