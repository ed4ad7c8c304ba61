"""The images that nodes run: real SGLang on its CPU device, and a tiny one for tests of logic.

An image is a list of layers, each one plain tar made once. SGLang's are the distribution, the
environment, and SGLang itself, so that two versions share all but the last.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cache import make_once, run
from .mooncake import mooncake
from .sglang_cpu import HOME, environment, server
from .trees import tree
from .wheels import VERSIONS

SGLANG = "lmsysorg/sglang"
TINY = "tiny/http"

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Parts of the environment that no server on the CPU device opens: a fifth of its 2.1 GB.
UNUSED = ("torch/include", "torch/test", "triton/backends/*/bin", "triton/backends/*/lib/*.bc")

# Names that must not come from a tree: Docker makes its own.
NOT_OF_A_TREE = ("dev", "proc", "sys", "run", "tmp")


@dataclass(frozen=True)
class Layer:
    """An uncompressed layer: its file, its digest (`sha256:...`), and its size in bytes."""

    file: Path
    digest: str
    size: int


@dataclass(frozen=True)
class Image:
    """What an image is made of; `config()` is what Docker reads."""

    repository: str
    tag: str
    layers: tuple[Layer, ...]
    env: Mapping[str, str]
    command: tuple[str, ...]

    def config(self, architecture: str) -> dict[str, Any]:
        """The image's configuration for `architecture` (`amd64` or `arm64`)."""
        return {
            "architecture": architecture,
            "os": "linux",
            "created": "2026-01-01T00:00:00Z",
            "config": {
                "Env": [f"{name}={value}" for name, value in self.env.items()],
                "Cmd": list(self.command),
                "WorkingDir": "/",
                "Labels": {"org.opencontainers.image.version": self.tag},
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in self.layers]},
            "history": [{"created_by": "test"} for _ in self.layers],
        }


def _layer(cache: Path, name: str, source: Path, *tar: str) -> Layer:
    """The layer `name` made by `tar` from the directory `source`, anew where `source` is newer."""

    def make(beside: Path) -> None:
        file = beside / "layer.tar"
        run("tar", "--create", "--numeric-owner", "-f", file, "-C", source, *tar)
        with open(file, "rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        (beside / "digest").write_text(f"sha256:{digest}")

    stamp = json.dumps([source.stat().st_ctime_ns, tar])
    folder = make_once(cache / "layers" / name, make, stamp)
    file = folder / "layer.tar"
    return Layer(file, (folder / "digest").read_text(), file.stat().st_size)


def _at_home(source: Path) -> list[str]:
    """Arguments for tar that put what is in `source` under /opt/sglang."""
    names = sorted(os.listdir(source))
    return [f"--transform=flags=rSh;s,^,{HOME.lstrip('/')}/,", *names]


def sglang(cache: Path, version: str) -> Image:
    """`lmsysorg/sglang:v<version>`: no entry point and `/bin/bash` as command, as the real one."""
    ground, home, own = tree(cache, "image"), environment(cache), server(cache, version)
    moves = mooncake(cache)
    excluded = [f"--exclude={part}" for part in UNUSED]
    names = sorted(name for name in os.listdir(ground) if name not in NOT_OF_A_TREE)
    layers = (
        _layer(cache, "ground", ground, *names),
        _layer(cache, "environment", home, *excluded, *_at_home(home)),
        _layer(cache, "mooncake", moves, *sorted(os.listdir(moves))),
        _layer(cache, f"sglang-{version}", own, *_at_home(own)),
    )
    env = {"PATH": f"{HOME}/bin:{PATH}", "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
    return Image(SGLANG, f"v{version}", layers, env, ("/bin/bash",))


def tiny(cache: Path) -> Image:
    """`tiny/http:1`: busybox alone, which serves `/www` (`/www/ready` says ok) on port 8000."""
    busybox = tree(cache, "image") / "bin/busybox"

    def make(beside: Path) -> None:
        (beside / "bin").mkdir()
        (beside / "www").mkdir()
        run("cp", busybox, beside / "bin/busybox")
        for name in run(busybox, "--list").split():
            if name != "busybox":
                (beside / "bin" / name).symlink_to("busybox")
        (beside / "www/ready").write_text("ok\n")

    root = make_once(cache / "tiny", make)
    layer = _layer(cache, "tiny", root, "bin", "www")
    return Image(TINY, "1", (layer,), {"PATH": PATH}, ("httpd", "-f", "-p", "8000", "-h", "/www"))


def everything(cache: Path) -> list[Image]:
    """All images that the registry serves."""
    return [tiny(cache), *(sglang(cache, version) for version in VERSIONS)]
