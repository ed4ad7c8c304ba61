"""An operator's own lock of Python packages, in a release's place: a part of the wishes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class OwnLock(BaseModel):
    """Where it is on the controller, and its text once it was read there.

    ``path`` is relative to the folder of the inventory file, as ``sglang.lock`` is beside it;
    where the target is no file, to the directory that sglang-node runs in. The text stays on
    the controller: a plan that is kept holds it, a node gets the requirements alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    text: str | None = Field(default=None, repr=False)


def read_own_lock(value: Any) -> Any:
    """Return what an inventory says of an own lock, as its record takes it. Raises ValueError."""
    if value is None or isinstance(value, OwnLock | Mapping):
        return value
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError("is no path: write the path of a lock of packages on the controller")
    return {"path": value}


OwnLockField = Annotated[OwnLock | None, BeforeValidator(read_own_lock)]
