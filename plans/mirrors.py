"""Where Python packages, FlashInfer's kernels and Pythons come from: a part of the wishes."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, field_validator

_ADDRESS = re.compile(
    r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?(/[A-Za-z0-9_.~+%-]+)*/?", re.ASCII
)


class Mirrors(BaseModel):
    """Addresses that stand in for what uv and FlashInfer ask by themselves; None: their own.

    ``index``: an index of Python packages, as UV_DEFAULT_INDEX. ``flashinfer``: FlashInfer's
    index, without the label of a CUDA release. ``python``: builds of Python, as
    UV_PYTHON_INSTALL_MIRROR. ``python_downloads``: the list of them, as
    UV_PYTHON_DOWNLOADS_JSON_URL. Image registry and model hub are ``registry`` and ``hub``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: str | None = None
    flashinfer: str | None = None
    python: str | None = None
    python_downloads: str | None = None

    @field_validator("index", "flashinfer", "python", "python_downloads")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        # It stands in argument lists, kept plans and messages: no place for a user or key.
        if value is not None and "@" in value:
            raise ValueError("holds a user or password: write the address without it")
        if value is not None and not _ADDRESS.fullmatch(value):
            raise ValueError("is no address: write https://HOST/PATH")
        return value and value.rstrip("/")

    def uv_environment(self) -> dict[str, str]:
        """Return the variables by which uv takes these mirrors; none that is not set."""
        given = {
            "UV_DEFAULT_INDEX": self.index,
            "UV_PYTHON_INSTALL_MIRROR": self.python,
            "UV_PYTHON_DOWNLOADS_JSON_URL": self.python_downloads,
        }
        return {name: value for name, value in given.items() if value is not None}
