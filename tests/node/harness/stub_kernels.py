"""Stands for sgl_kernel in the CPU environment: every name exists, and calling one raises.

The CPU device needs none of SGLang's GPU kernels, but much of SGLang imports their names.
Installed as `sgl_kernel/__init__.py`.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

__version__ = "0.4.10"


class _Names:
    """For enum-like tables such as scalar_types: an attribute is its own name."""

    def __getattr__(self, name: str) -> str:
        return name


def _kernel(name: str) -> Callable[..., Any]:
    def missing(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"this environment has no GPU kernels: {name} was called")

    missing.__name__ = name.rpartition(".")[2]
    return missing


class _Module(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Names() if name == "scalar_types" else _kernel(f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.startswith(f"{__name__}."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.insert(0, _Finder())


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _kernel(f"{__name__}.{name}")
