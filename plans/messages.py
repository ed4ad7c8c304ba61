"""What is wrong with the operator's data, in sentences: the key, and what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from plans.examples import EXAMPLES

Place = tuple[int | str, ...]

WRITE = {
    "tuple_type": "write a list, such as ['a', 'b']",
    "list_type": "write a list, such as ['a', 'b']",
    "dict_type": "write a mapping, such as {'key': 'value'}",
    "model_type": "write a mapping, such as {'key': 'value'}",
    "string_type": "write text, in quotes",
    "bool_type": "write True or False",
    "bool_parsing": "write True or False",
    "int_type": "write a whole number",
    "int_parsing": "write a whole number",
    "int_from_float": "write a whole number",
    "float_type": "write a number",
    "float_parsing": "write a number",
}
"""What to write, by pydantic's name for what is wrong with a value's type."""

_NOT_KEYS = ("literal['all']", "tuple[union[int,str],...]")
"""Parts of a place that are pydantic's names for the types that a value may have."""


def sentences(error: ValidationError, data: Mapping[Any, Any], model: type[BaseModel]) -> list[str]:
    """Return each thing that is wrong, once, beginning with its key.

    ``data`` is what was validated, ``model`` what it was validated as.
    """
    lines = []
    for one in error.errors(include_url=False):
        place, key = one["loc"], _key(one["loc"], data)
        match one["type"]:
            case "extra_forbidden":
                lines.append(f"{key}: is no key of ours{_suggest(place, model)}")
            case "invalid_key":
                lines.append(f"{key}: is no text: write keys as text")
            case "missing":
                lines.append(f"{key}: is missing: write it{_example(place)}")
            case "value_error":
                text = str(one["ctx"]["error"])
                lines.append(f"{key}: {text}" if key else text)
            case kind:
                shown = "what it is" if _private(place, one) else repr(one.get("input"))
                shown = shown if len(shown) <= 60 else shown[:57] + "..."
                told = _write(kind, place) or WRITE.get(
                    kind, f"{one['msg'][0].lower()}{one['msg'][1:]}"
                )
                if kind == "string_pattern_mismatch" and place[-1] == "shm_size":
                    told = "write a size, such as 32g"
                lines.append(f"{key}: is {shown}: {told}")
    return list(dict.fromkeys(lines))


def _private(place: Place, one: Mapping[str, Any]) -> bool:
    # Where a secret's place is asked for, somebody may have written the secret.
    return "secrets" in place or "@" in str(one.get("input"))


def _key(place: Place, data: Mapping[Any, Any]) -> str:
    words: list[str] = []
    for number, part in enumerate(place):
        if isinstance(part, int) and words:
            name = _service_name(data, part) if place[:number] == ("services",) else None
            words[-1] += f"[{name or part}]"
        elif part not in _NOT_KEYS:
            words.append(str(part))
    return ".".join(words)


def _service_name(data: Mapping[Any, Any], index: int) -> str | None:
    try:
        name = data["services"][index]["name"]
    except (KeyError, IndexError, TypeError):
        return None
    return name if isinstance(name, str) and name else None


def _suggest(place: Place, model: type[BaseModel]) -> str:
    known = _model_at(place[:-1], model).model_fields
    near = difflib.get_close_matches(str(place[-1]), known, n=1, cutoff=0.6)
    if near:
        return f": write {near[0]}"
    if "arguments" in known:
        return f": flags of the server go under 'arguments', and the keys are {', '.join(known)}"
    return f": the keys are {', '.join(known)}"


def _model_at(place: Iterable[int | str], model: type[BaseModel]) -> type[BaseModel]:
    """Return the model that stands at a place of ``model``."""
    for part in place:
        field = model.model_fields.get(part) if isinstance(part, str) else None
        inner = _models_in(field.annotation) if field else []
        model = inner[0] if inner else model
    return model


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [one for part in get_args(annotation) for one in _models_in(part)]


def _write(kind: str, place: Place) -> str | None:
    """Return what to write in the place of another type, with an example of that very key."""
    what = {"tuple_type": "list", "list_type": "list"}.get(kind, "mapping")
    if what == "mapping" and kind not in ("dict_type", "model_type"):
        return None
    words = [
        "[]" if isinstance(part, int) else f".{part}" for part in place if part not in _NOT_KEYS
    ]
    example = EXAMPLES.get("".join(words).lstrip("."))
    return f"write a {what}, such as {example}" if example else None


def _example(place: Place) -> str:
    examples = {
        "services": ", such as 'services': [{'name': 'chat', 'model': 'Qwen/Qwen3-8B'}]",
        "name": ", such as 'name': 'chat'",
        "model": ", such as 'model': 'Qwen/Qwen3-8B' or 'model': '/srv/models/qwen3-8b'",
    }
    return examples.get(str(place[-1]), "")
