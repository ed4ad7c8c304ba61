"""The GPUs that a hand-made start uses, as an inventory names them."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from plans.adopt.records import Container, Note
from plans.gpus import gpus_needed
from plans.wishes import Service

_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+")


@dataclass(frozen=True)
class Which:
    """What the key ``gpus`` says, and what of the old choice could not be read."""

    chosen: str | list[int | str]
    lost: tuple[Note, ...] = ()


def which_gpus(
    container: Container | None,
    environment: Mapping[str, str],
    arguments: MutableMapping[str, Any],
    tp_size: int,
    alone: bool,
) -> Which:
    """Return the GPUs: those that the container was given, narrowed by CUDA_VISIBLE_DEVICES and
    --base-gpu-id, which is taken out of the arguments.

    ``alone``: no other server runs on the node; else the first ones are named, as SGLang took them.
    """
    lost: list[Note] = []
    visible: list[int | str] | None = None  # None: all
    given = container.gpus if container else None
    if isinstance(given, int):
        visible = list(range(given))
    elif isinstance(given, tuple):
        visible = _names(given, lost)
    elif container and given is None:
        visible = _listed(environment.get("NVIDIA_VISIBLE_DEVICES", "all"), lost)
    narrowed = _listed(environment.get("CUDA_VISIBLE_DEVICES", "all"), lost)
    if narrowed is not None:
        # Counted among those that the container sees.
        visible = [
            visible[one] if visible and isinstance(one, int) and one < len(visible) else one
            for one in narrowed
        ]
    base = _number(arguments.pop("base-gpu-id", 0))
    needed = gpus_needed(
        Service.model_construct(tp_size=tp_size, arguments=dict(arguments), name="x", model="x")
    )
    if visible is None:
        if base == 0 and alone:
            return Which("all", tuple(lost))
        return Which(list(range(base, base + needed)), tuple(lost))
    chosen = visible[base : base + needed]
    if len(chosen) < needed:
        lost.append(
            Note(
                f"GPUs {', '.join(map(str, visible)) or 'none'}",
                f"{needed} are needed from the {base + 1}. on: name them in gpus",
            )
        )
        return Which("all", tuple(lost))
    return Which(chosen, tuple(lost))


def _listed(text: str, lost: list[Note]) -> list[int | str] | None:
    if text.strip() in ("all", ""):
        return None
    if text.strip() in ("void", "none", "-1"):
        return []
    return _names(text.split(","), lost)


def _names(texts: Sequence[str], lost: list[Note]) -> list[int | str]:
    found: list[int | str] = []
    for text in (one.strip() for one in texts):
        if text.isdigit():
            found.append(int(text))
        elif _UUID.fullmatch(text):
            found.append(text)
        elif text:
            lost.append(Note(f"GPU {text}", "write it by its number or UUID (nvidia-smi -L)"))
    return list(dict.fromkeys(found))


def _number(value: Any) -> int:
    try:
        return max(0, int(value))
    except (TypeError, ValueError):
        return 0
