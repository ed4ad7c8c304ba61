"""All of the harness in one object, for pytest's fixtures and for trying things in a shell.

from tests.node.harness.lab import Lab
lab = Lab()
node = lab.node("gpu-a")        # booted, one played L4
print(node.run("nvidia-smi").stdout)
lab.close()                     # also done when the shell ends, however it ends
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from . import sglang_cpu
from .cache import cache_dir, make_once, run
from .gpus import play_gpus, play_library
from .images import SGLANG, TINY
from .machine import Node
from .mirror import Mirror, apt_source
from .registry import PORT, Registry, data
from .stage import Stage
from .trees import TREES, tree
from .wheels import VERSIONS

# Where a node sees the tiny model.
MODEL = "/srv/models/tiny"


class Lab:
    """Nodes on one bridge. Costly things are made at their first use and kept in the cache."""

    def __init__(self) -> None:
        self.cache: Path = cache_dir()
        self.stage = Stage.open(self.cache)

    def close(self) -> None:
        """Take away every node and the bridge."""
        self.stage.close()

    @cached_property
    def registry(self) -> Registry:
        """The registry, started at the first use: `lmsysorg/sglang` and `tiny/http`."""
        return Registry.start(self.stage, data(self.cache))

    @cached_property
    def mirror(self) -> Mirror:
        """Packages, Pythons and the distribution's own, served from the first use on."""
        return Mirror.start(self.stage, self.cache)

    def node(
        self,
        name: str,
        tree_name: str = "trixie",
        gpus: str | None = "one_l4_580",
        images: bool = False,
        model: bool = True,
        boot: bool = True,
    ) -> Node:
        """A node over the base tree `tree_name`, with the played GPUs of recording `gpus`.

        Its Docker takes the run's registry as mirror of Docker Hub (`docker pull
        lmsysorg/sglang@sha256:...` works), and by its own address without TLS. With `images`
        the SGLang images and the tiny one were pulled already; otherwise its store is empty.
        A node of the tree "fresh" has neither Docker nor a compiler. Every node's apt asks
        the run's mirror, which `mirror` starts; every one with GPUs has the driver's library.
        `model` shows it the tiny model at /srv/models/tiny. With `boot=False` the caller may
        still change its disk before `boot()`.
        """
        binds = {sglang_cpu.model(self.cache): MODEL} if model else {}
        node = self._bare(name, tree_name, binds)
        if images:
            copy_store(self.store(tree_name), node.store)
        if gpus is not None:
            play_library(node, self.cache)
            play_gpus(node, gpus, with_cdi=TREES[tree_name].has_docker)
        return node.boot() if boot else node

    def _bare(self, name: str, tree_name: str, binds: dict[Path, str]) -> Node:
        node = Node.create(self.stage, name, tree(self.cache, tree_name), binds=binds)
        node.put("/etc/apt/sources.list", apt_source(self.stage.address, tree_name))
        if not TREES[tree_name].has_docker:
            return node
        host = f"{self.stage.address}:{PORT}"
        node.docker_settings(insecure_registries=[host], registry_mirrors=[f"http://{host}"])
        return node

    def store(self, tree_name: str) -> Path:
        """A Docker store in which all images lie already, pulled by a node of `tree_name`."""
        content = data(self.cache)
        registry = self.registry

        def make(beside: Path) -> None:
            node = self._bare(f"store-{tree_name}", tree_name, {}).boot()
            tags = [f"{TINY}:1", *(f"{SGLANG}:v{version}" for version in VERSIONS)]
            for tag in tags:
                repository, _, name = tag.partition(":")
                node.run(f"docker pull -q {repository}@{registry.digest(repository, name)}")
            node.shutdown()
            run("cp", "-a", f"{node.store}/.", beside)
            (beside / "engine-id").unlink(missing_ok=True)

        stamp = (content.parent / f".{content.name}.stamp").read_text()
        return make_once(self.cache / "stores" / tree_name, make, stamp)


def copy_store(store: Path, into: Path) -> None:
    """Give a node its own copy of a Docker store, in seconds.

    The files of the layers, which Docker never changes in place, are shared by hard links; its
    databases are copied.
    """
    for part in store.iterdir():
        link = ["--link"] if part.name == "overlay2" else []
        run("cp", "-a", *link, part, into)
