"""A real registry on the run's bridge, for the nodes' Docker and for the controller alike.

Its data is written once in the layout that docker-registry (2.8) itself keeps on disk: an upload
of the same 2 GB takes minutes. Each run serves it through an overlay, so pushes are forgotten.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cache import HarnessError, make_once
from .images import Image, Layer, everything, tiny
from .stage import Stage, mount_overlay

PORT = 5000

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar"


class Storage:
    """A docker-registry's data directory, written directly."""

    def __init__(self, root: Path) -> None:
        self.root = root / "docker/registry/v2"

    def add(self, image: Image, arm64: Image) -> str:
        """Add `image` for amd64 beside `arm64` for arm64 under its tag; return the list's digest.

        A node of the other architecture is never booted, so `arm64` may be any small image.
        """
        manifests = []
        for architecture, built in (("amd64", image), ("arm64", arm64)):
            body = json.dumps(
                {
                    "schemaVersion": 2,
                    "mediaType": MANIFEST,
                    "config": self._config(image.repository, built.config(architecture)),
                    "layers": [self._layer(image.repository, layer) for layer in built.layers],
                }
            ).encode()
            manifests.append(
                {
                    "mediaType": MANIFEST,
                    "digest": self._manifest(image.repository, body),
                    "size": len(body),
                    "platform": {"architecture": architecture, "os": "linux"},
                }
            )
        both = {"schemaVersion": 2, "mediaType": LIST, "manifests": manifests}
        digest = self._manifest(image.repository, json.dumps(both).encode())
        tag = self.root / "repositories" / image.repository / "_manifests/tags" / image.tag
        self._link(tag / "current", digest)
        self._link(tag / "index" / digest.replace(":", "/"), digest)
        return digest

    def _config(self, repository: str, config: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps(config).encode()
        digest = self._blob(body)
        self._layer_link(repository, digest)
        return {"mediaType": CONFIG, "digest": digest, "size": len(body)}

    def _layer(self, repository: str, layer: Layer) -> dict[str, Any]:
        data = self._data(layer.digest)
        if not data.exists():
            try:
                data.hardlink_to(layer.file)
            except OSError:  # another disk
                shutil.copy(layer.file, data)
        self._layer_link(repository, layer.digest)
        return {"mediaType": LAYER, "digest": layer.digest, "size": layer.size}

    def _manifest(self, repository: str, body: bytes) -> str:
        digest = self._blob(body)
        revisions = self.root / "repositories" / repository / "_manifests/revisions"
        self._link(revisions / digest.replace(":", "/"), digest)
        return digest

    def _blob(self, body: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        self._data(digest).write_bytes(body)
        return digest

    def _data(self, digest: str) -> Path:
        hexed = digest.partition(":")[2]
        folder = self.root / "blobs/sha256" / hexed[:2] / hexed
        folder.mkdir(parents=True, exist_ok=True)
        return folder / "data"

    def _layer_link(self, repository: str, digest: str) -> None:
        layers = self.root / "repositories" / repository / "_layers"
        self._link(layers / digest.replace(":", "/"), digest)

    @staticmethod
    def _link(folder: Path, digest: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "link").write_text(digest)


def data(cache: Path) -> Path:
    """The registry's data directory with all images, made once."""
    images = everything(cache)

    def make(beside: Path) -> None:
        for image in images:
            Storage(beside).add(image, arm64=tiny(cache))

    stamp = json.dumps([(image.tag, image.config("amd64")) for image in images])
    return make_once(cache / "registry", make, stamp)


@dataclass(frozen=True)
class Registry:
    """A running registry: `host` is the HOST:PORT that image names begin with."""

    host: str

    @property
    def url(self) -> str:
        """Its address for a program on this machine: plain HTTP."""
        return f"http://{self.host}"

    @classmethod
    def start(cls, stage: Stage, content: Path) -> Registry:
        """Serve `content` on the bridge until the run ends; wait until it answers."""
        folder = stage.directory / "registry"
        root = mount_overlay(content, folder)
        settings = {
            "version": 0.1,
            "log": {"level": "warn"},
            "storage": {"filesystem": {"rootdirectory": str(root)}, "delete": {"enabled": True}},
            "http": {"addr": f"{stage.address}:{PORT}", "secret": "for tests"},
        }
        config = folder / "config.yml"
        config.write_text(json.dumps(settings))  # JSON is YAML
        with open(folder / "log", "ab") as log:
            process = stage.start("registry", ["docker-registry", "serve", str(config)], log)
        registry = cls(f"{stage.address}:{PORT}")
        end = time.monotonic() + 30
        while time.monotonic() < end and process.poll() is None:
            try:
                with urllib.request.urlopen(f"{registry.url}/v2/", timeout=5):
                    return registry
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise HarnessError(f"the registry did not start:\n{(folder / 'log').read_text()[-2000:]}")

    def digest(self, repository: str, tag: str) -> str:
        """The digest of a tag's manifest list, as a HEAD request answers it."""
        request = urllib.request.Request(
            f"{self.url}/v2/{repository}/manifests/{tag}", method="HEAD", headers={"Accept": LIST}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(answer.headers["Docker-Content-Digest"])
