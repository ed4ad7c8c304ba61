"""Paths of the node that a service's arguments name: its container must see them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from plans.wishes import Service
from releases.yaml_text import read_yaml


@cache
def _flags() -> frozenset[str]:
    file = Path(__file__).with_name("data") / "weights.yaml"
    return frozenset(read_yaml(file.read_text(encoding="utf-8"))["read_by"])


def read_by_arguments(service: Service) -> tuple[str, ...]:
    """Return the paths of the node that a service's arguments name to be read, each once."""
    found: dict[str, None] = {}
    for name, value in service.arguments.items():
        if name.lstrip("-").replace("_", "-") in _flags():
            for one in value if isinstance(value, (list, tuple)) else [value]:
                # An adapter may be given a name: NAME=PATH.
                path = str(one).rpartition("=")[2]
                # Docker separates the parts of a mount by commas.
                if path.startswith("/") and "," not in path and path.isprintable():
                    found[path] = None
    return tuple(found)
