"""Paths of a container, as the node has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from plans.adopt.data import adopt_data
from plans.adopt.records import Container, Mount, Note
from plans.reads import read_by_arguments
from plans.wishes import Service

HUB_OF_ROOT = "/root/.cache/huggingface"


class Files:
    """Where a server's files lie on the node, and which of its mounts that needs."""

    def __init__(
        self, container: Container | None, directory: str | None, home: str | None
    ) -> None:
        self._container = container
        self._directory = directory
        self._home = home
        self._used: set[Mount] = set()

    def on_node(self, path: str) -> tuple[str, bool]:
        """Return a path as the node has it, and whether the node has it at all."""
        if self._container is None:
            if path.startswith("~/") and self._home:
                return f"{self._home}{path[1:]}", True
            return (path if path.startswith("/") else _joined(self._directory, path)), True
        best = _over(self._container.mounts, path)
        if best is None or not best.source.startswith(("/", ".", "~")):
            return path, False
        self._used.add(best)
        rest = PurePosixPath(path).relative_to(best.target)
        return str(PurePosixPath(best.source) / rest), True

    def weights(self, environment: Mapping[str, str]) -> str | None:
        """Return where the server's weights of the hub lie on the node, or None: nowhere lasting."""
        hub = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
        if hub and PurePosixPath(hub).name == "hub":
            place = str(PurePosixPath(hub).parent)
        elif hub:
            return None  # another name than the one that HF_HOME has it by
        else:
            home = (
                HUB_OF_ROOT
                if self._container
                else self._home and f"{self._home}/.cache/huggingface"
            )
            place = environment.get("HF_HOME") or home or ""
        if not place:
            return None
        here, seen = self.on_node(place)
        if not seen and self._container:
            below = [m for m in self._container.mounts if m.target == f"{place.rstrip('/')}/hub"]
            if below and PurePosixPath(below[0].source).name == "hub":
                self._used.add(below[0])
                return str(PurePosixPath(below[0].source).parent)
        return here if seen else None

    def argument(self, name: str, value: Any) -> tuple[Any, Note | None]:
        """Return an argument's value with the node's paths, or a note where it has no place."""
        if isinstance(value, list):
            moved = [self.argument(name, one) for one in value]
            lost = next((note for _, note in moved if note), None)
            return [one for one, _ in moved], lost
        if not isinstance(value, str):
            return value, None
        given = Service.model_construct(name="x", model="x", arguments={name: value})
        reads = bool(read_by_arguments(given))
        begin, equals, path = value.rpartition("=") if reads else ("", "", value)
        if not path.startswith("/") or self._container is None:
            return value, None
        here, seen = self.on_node(path)
        if reads and seen:
            return f"{begin}{equals}{here}", None
        if reads:
            why = "it lies inside the image, where only the image's own programs look"
            return value, Note(f"--{name} {path}", f"{why}: copy it to the node and name it there")
        if seen:
            why = "the service's container does not see that directory"
            return value, Note(f"--{name} {path}", why)
        return value, None

    def lost_mounts(self) -> list[Note]:
        """Return a note for every mount that nothing of the entry needs."""
        data = adopt_data()
        out = []
        for mount in self._container.mounts if self._container else ():
            if mount in self._used or mount.target in data.mounts_ignored:
                continue
            if mount.source == "/dev/infiniband" or mount.source.startswith("/dev/nvidia"):
                continue
            what = f"mount {mount.source} at {mount.target}"
            if mount.target.startswith(HUB_OF_ROOT):
                if not mount.source.startswith("/"):
                    why = "where it lies on the node is not said: write it as paths.weights"
                    out.append(Note(what, f"{why}, or the weights are fetched again"))
                continue
            if mount.target.startswith(data.mounts_of_caches):
                out.append(Note(what, data.mount_of_caches))
            elif any(part in mount.target for part in data.code_in_image):
                out.append(Note(what, data.mount_of_code))
            else:
                out.append(Note(what, data.mount_otherwise))
        return out


def _over(mounts: tuple[Mount, ...], path: str) -> Mount | None:
    """Return the mount that a path of the container lies under: the deepest."""
    if not path.startswith("/"):
        return None
    over = [one for one in mounts if PurePosixPath(path).is_relative_to(one.target)]
    return max(over, key=lambda one: len(one.target), default=None)


def _joined(directory: str | None, path: str) -> str:
    if not directory:
        return path
    parts: list[str] = []
    for part in PurePosixPath(directory, path).parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return str(PurePosixPath(*parts))
