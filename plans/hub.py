"""How the model hub is reached: a part of the operator's wishes."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

_ADDRESS = re.compile(
    r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?(/[A-Za-z0-9_.~-]+)*/?", re.ASCII
)


class Hub(BaseModel):
    """How the model hub is reached: by the controller for the lock, by a node for the weights.

    ``endpoint``: address of a mirror; None is HF_ENDPOINT on the controller, and the hub itself
    on a node. ``parallel``: files that a node reads from it at once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint: str | None = None
    parallel: Annotated[int, Field(strict=True, ge=1, le=64)] = 8

    @field_validator("endpoint")
    @classmethod
    def _endpoint(cls, value: str | None) -> str | None:
        # It stands in argument lists and messages: no place for a user or key.
        if value is not None and not _ADDRESS.fullmatch(value):
            raise ValueError(
                "is no address of a hub: write https://HOST or https://HOST/PATH, without user or key"
            )
        return value and value.rstrip("/")
