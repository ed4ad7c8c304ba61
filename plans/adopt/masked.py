"""Secrets of a hand-made start: taken out, named, and never shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plans.sources import secret_argument, secret_variable

STARS = "***"

HUB_TOKENS = {
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGINGFACEHUB_API_TOKEN",
}  # fmt: skip
_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
_KNOWN_FORMS = re.compile(r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,})")

_REFERENCE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*(?::?\?[^}]*)?\})")
"""A variable in the place of a value: its name is no secret, and people need it."""


@dataclass(frozen=True)
class Aside:
    """What is left without secrets, and what is said of each: never its value."""

    arguments: dict[str, Any]
    environment: dict[str, str]
    service: dict[str, Any]  # keys of the service that name where a secret is
    node: dict[str, Any]  # keys of the node that do
    said: tuple[str, ...]


def put_aside(where: str, arguments: Mapping[str, Any], environment: Mapping[str, str]) -> Aside:
    """Return the arguments and variables without secrets.

    ``where`` says in words where they stood.
    """
    kept, variables = dict(arguments), dict(environment)
    service: dict[str, Any] = {}
    node: dict[str, Any] = {}
    said: list[str] = []
    for flag, key, variable in (
        ("api-key", "api_key", "SGLANG_API_KEY"),
        ("admin-api-key", "admin_api_key", "SGLANG_ADMIN_API_KEY"),
    ):
        if flag in kept:
            del kept[flag]
            service[key] = {"env": variable}
            said.append(
                f"--{flag} stood in the argument list of {where}, where every user of the node "
                f"could read it: make a new one, and export {variable} where you run apply"
            )
    for name in [name for name in kept if secret_argument(name)]:
        del kept[name]
        said.append(f"--{name} of {where} held a secret: {secret_argument(name)}")
    for name in [name for name in variables if secret_variable(name)]:
        del variables[name]
        if name in HUB_TOKENS:
            node["secrets"] = {"hub_token": {"env": "HF_TOKEN"}}
            said.append(
                f"{name} stood in the environment of {where}: export HF_TOKEN where you run "
                "lock and apply; the server itself needs none"
            )
        else:
            said.append(f"{name} of {where} looks like a secret: {secret_variable(name)}")
    for name in [name for name, value in kept.items() if _KNOWN_FORMS.search(str(value))]:
        del kept[name]
        said.append(f"--{name} of {where} holds what looks like a token: leave it out of it")
    for name in [name for name, value in variables.items() if _KNOWN_FORMS.search(value)]:
        del variables[name]
        said.append(f"{name} of {where} holds what looks like a token: leave it out")
    for name in [name for name, value in variables.items() if _IN_URL.search(value)]:
        del variables[name]
        said.append(f"{name} of {where} holds a user or password in an address: leave it out")
    for name in [name for name, value in kept.items() if _IN_URL.search(str(value))]:
        del kept[name]
        said.append(f"--{name} of {where} holds a user or password in an address: leave it out")
    if "admin_api_key" in service and "api_key" not in service:
        del service["admin_api_key"]
        said.append("admin_api_key goes with api_key: with an admin key alone everyone reads it")
    return Aside(kept, variables, service, node, tuple(said))


def secrets_among(words: Sequence[str], environment: Mapping[str, str]) -> set[str]:
    """Return the values that must be shown nowhere."""
    found = {value for name, value in environment.items() if secret_variable(name)}
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.startswith("-") and secret_argument(name):
            found.add(value if equals else words[i + 1] if i + 1 < len(words) else "")
        elif not name.startswith("-") and equals and secret_variable(name):
            found.add(value)
    return {one for one in found if len(one) > 3 and not _REFERENCE.fullmatch(one)}


def public(words: Sequence[str]) -> list[str]:
    """Return words without the values of flags that are secrets."""
    found: list[str] = []
    skip = False
    for word in words:
        name, equals, _ = word.partition("=")
        secret = name.startswith("-") and secret_argument(name) is not None
        found += [] if skip else [name if secret else word]
        skip = secret and not equals
    return found


def masked(text: str, secrets: Iterable[str]) -> str:
    """Return a text for people in which no secret stands."""
    for one in sorted(secrets, key=len, reverse=True):
        text = text.replace(one, STARS)
    return _KNOWN_FORMS.sub(STARS, _IN_URL.sub(f"{STARS}@", text))
