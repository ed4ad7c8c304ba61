"""Bundles for tests: made by the product's own writer, of contents that are given."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from operations.archive import Writer
from plans.bundle import Manifest, Member
from plans.bundle_scripts import EnvironmentToBundle
from plans.mirrors import Mirrors
from plans.wheel.environment import PlannedEnvironment
from releases.wheels import Package, WheelLock, write_lock
from tests.unit.deployments import COMMIT, CONFIG, INDEX, TIME, lock

IMAGE_BYTES = b"layers" * 1000


def member(data: bytes) -> Member:
    """Return the record of a content."""
    return Member(sha256=hashlib.sha256(data).hexdigest(), size=len(data))


def manifest(files: dict[str, bytes] | None = None, **changes: Any) -> Manifest:
    """Return the manifest of a bundle with one image, and a model with these files."""
    data: dict[str, Any] = {
        "toolkit": "0.1.0",
        "made_at": TIME,
        "made_on": "maker",
        "architecture": "x86_64",
        "glibc": None,
        "serves": [
            {"name": "chat", "model": "Qwen/Qwen3-8B", "release": "0.5.23", "runtime": "image"}
        ],
        "images": [
            {
                "asked": "lmsysorg/sglang:v0.5.23",
                "index_digest": INDEX,
                "config_digest": CONFIG,
                "saved_digest": None,
                "archive": member(IMAGE_BYTES).model_dump(),
            }
        ],
        "models": [
            {
                "repo": "Qwen/Qwen3-8B",
                "commit": COMMIT,
                "files": [
                    {
                        "path": path,
                        "checksum": member(content).sha256,
                        "content": member(content).model_dump(),
                    }
                    for path, content in (files or {}).items()
                ],
            }
        ],
        "lock": lock().to_json(),
        **changes,
    }
    return Manifest.model_validate(data)


def written(path: Path, of: Manifest, contents: list[bytes]) -> str:
    """Write a bundle with these contents; return its manifest's hash."""
    writer = Writer(path, of)
    for content in contents:
        writer.write(content)
    return writer.finish()


def environment(**changes: Any) -> dict[str, Any]:
    """Return the data of an environment in a bundle: one wheel, a Python, and uv."""
    return {
        "key": "0123456789abcdef",
        "release": "0.5.23",
        "requirements_sha256": "a" * 64,
        "python": {
            "name": "cpython-3.12.11-linux-x86_64-gnu",
            "content": member(b"python").model_dump(),
        },
        "uv": {"name": "uv-0.13.9", "content": member(b"uv").model_dump()},
        "wheels": [{"name": "idna-3.15-py3-none-any.whl", "content": member(b"idna").model_dump()}],
        **changes,
    }


def environment_to_bundle() -> EnvironmentToBundle:
    """Return an environment of one wheel, as a plan has it."""
    lock = WheelLock(
        release="0.5.23",
        architecture="x86_64",
        python="3.12",
        glibc="2.34",
        device="cpu",
        as_of="2026-11-30T00:00:00Z",
        uv="0.13.9",
        packages=(
            Package(
                name="idna",
                version="3.15",
                hashes=(f"sha256:{member(b'idna').sha256}",),
                file="idna-3.15-py3-none-any.whl",
                size=4,
            ),
        ),
    )
    planned = PlannedEnvironment(
        key="0123456789abcdef",
        release="0.5.23",
        requirements=write_lock(lock),
        size=4,
        python="3.12",
        cuda_home=None,
        packages=(),
        mirrors=Mirrors(),
        build=True,
        why="not on the node",
        pages=("https://example.org/a page",),
    )
    return EnvironmentToBundle(planned, lock)
