"""Two small files of a model, read when it is locked: config.json and the index of its weights.

What cannot be read leaves the model locked all the same: how much memory it takes is then not
known, and the lock says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from locks.model_config import INDEX_LIMIT_BYTES, LIMIT_BYTES, config_of, index_bytes_of
from locks.records import LockedModel

if TYPE_CHECKING:
    from locks.hub import HubOptions

CONFIG = "config.json"
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")

T = TypeVar("T")


class _NotRead(Exception):
    """A file that could not be read; the text says why."""


def with_config(model: LockedModel, options: HubOptions) -> LockedModel:
    """Return a locked model with what its config.json and the index of its weights say."""
    sizes = {file.path: file.size_bytes for file in model.files}
    found: dict[str, Any] = {}
    try:
        if CONFIG in sizes:
            found["config"] = _read(model, CONFIG, sizes, LIMIT_BYTES, options, config_of)
        else:
            found["config_why"] = f"the model has no {CONFIG}"
        index = next((name for name in INDEXES if name in sizes), None)
        if index is not None:
            found["index_bytes"] = _read(
                model, index, sizes, INDEX_LIMIT_BYTES, options, index_bytes_of
            )
    except _NotRead as why:
        found["config_why"] = str(why)
    return model.model_copy(update={name: one for name, one in found.items() if one is not None})


def _read(
    model: LockedModel,
    name: str,
    sizes: dict[str, int],
    limit: int,
    options: HubOptions,
    understand: Callable[[bytes], T],
) -> T:
    if sizes[name] > limit:
        raise _NotRead(f"{name} has {sizes[name]} bytes and is not read over {limit}")
    try:
        return understand(_body(model, name, options))
    except _NotRead:
        raise
    except ValueError:
        raise _NotRead(f"{name}: there came something that is not its JSON") from None
    except Exception as error:
        # Whatever its HTTP library is called in this version; no text of it: it may hold a token.
        raise _NotRead(f"{name}: no answer ({type(error).__name__})") from None


def _body(model: LockedModel, name: str, options: HubOptions) -> bytes:
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    endpoint = options.endpoint or os.environ.get("HF_ENDPOINT") or None
    answer = get_session().get(
        hf_hub_url(model.repo, name, revision=model.commit, endpoint=endpoint),
        headers=build_hf_headers(token=options.token),
        timeout=options.timeout_s,
    )
    status = int(answer.status_code)
    if status in (401, 403):
        raise _NotRead(
            f"{name}: the model is gated or private (HTTP {status}): accept its terms, log in "
            "(hf auth login, or HF_TOKEN), then run sglang-node lock --refresh"
        )
    if status != 200:
        raise _NotRead(f"{name}: HTTP {status}")
    return bytes(answer.content)
