"""Where a command's wishes come from: the inventory's data, or the options for one box."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

import click
import yaml

from plans.wishes import DEFAULT_OUTPUT_CAP

NODE_KEYS = ("release", "image", "runtime", "forward_compat", "cu129_override", "unsupported")


def one_box(
    options: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> dict[str, Any] | None:
    """Return the data of an inventory that the options of one service amount to.

    ``options`` are the command line's, by parameter name; None where no
    service was given there. HF_ENDPOINT of ``environment``, the hub's own setting for a
    mirror, holds for the box as it does for the lock. Raises click.UsageError.
    """
    given = {k: v for k, v in options.items() if v is not None and v is not False and v != ()}
    if "model" not in given:
        extra = [k for k in given if k not in NODE_KEYS]
        if extra:
            raise click.UsageError(
                f"--{extra[0].replace('_', '-')} goes with --model: name the model"
            )
        return dict(given) or None
    service: dict[str, Any] = {
        key: value
        for key, value in given.items()
        if key not in (*NODE_KEYS, "argument", "env", "hub_token")
    }
    service.setdefault("name", _name_of(str(given["model"])))
    # Offered for one box, and said in --help and the plan: an inventory must name its own.
    service.setdefault("output_cap", DEFAULT_OUTPUT_CAP)
    if service.pop("writable_root", False):
        service["read_only"] = False
    if "gpus" in service:
        service["gpus"] = _gpus(service["gpus"])
    service["arguments"] = dict(_pair(text, "--argument") for text in given.get("argument", ()))
    service["arguments"] = {k: _value(v) for k, v in service["arguments"].items()}
    service["environment"] = dict(_pair(text, "--env") for text in given.get("env", ()))
    if "api_key" in service:
        service["api_key"] = _source(service["api_key"], "--api-key")
    node = {key: given[key] for key in NODE_KEYS if key in given}
    if environment.get("HF_ENDPOINT"):
        node["hub"] = {"endpoint": environment["HF_ENDPOINT"]}
    if "hub_token" in given:
        node["secrets"] = {"hub_token": _source(given["hub_token"], "--hub-token")}
    return {**node, "services": [service]}


_SERVICE_KEY = re.compile(r"^services\[[^]]*\]\.(\w+)(?:\.([^:]+))?: ")
_INSTEAD = (
    ("write 'secrets': {'hub_token': {'env': 'HF_TOKEN'}} for the node", "write --hub-token env:HF_TOKEN"),
    ("write 'api_key': {'env': 'NAME'} in the service", "write --api-key env:NAME"),
    ("write 'admin_api_key': {'env': 'NAME'} in the service",
     "write an inventory, with 'admin_api_key': {'env': 'NAME'} in the service"),
)  # fmt: skip


def as_options(message: str, node: str) -> str:
    """Return a message about the data of one box as whoever typed its options has to read it.

    ``message``: a line of WishesError, which begins with the ``node`` and names keys of an
    inventory.
    """
    text = message.removeprefix(f"{node}: ")
    found = _SERVICE_KEY.match(text)
    key, inner = (found[1], found[2]) if found else (text.partition(":")[0], None)
    if key in ("arguments", "environment") and inner:
        option = f"--{'argument' if key == 'arguments' else 'env'} {inner}"
    elif key == "read_only":
        option = "--writable-root"
    elif found or key in NODE_KEYS:
        option = f"--{key.replace('_', '-')}"
    else:
        return message
    text = f"{option}: {text.partition(': ')[2]}"
    for inventory, option in _INSTEAD:
        text = text.replace(inventory, option)
    return text


def _name_of(model: str) -> str:
    last = model.rstrip("/").rsplit("/", 1)[-1].lower()
    return re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:40].strip("-") or "sglang"


def _gpus(text: str) -> Any:
    if text == "all":
        return text
    return [int(word) if word.strip().isdigit() else word.strip() for word in text.split(",")]


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"{option} {text!r}: write NAME=VALUE")
    return name, value


def _source(text: str, option: str) -> dict[str, Any]:
    kind, _, where = text.partition(":")
    try:
        words = shlex.split(where)
    except ValueError:  # an unclosed quote
        words = []
    if kind not in ("env", "file", "command") or not words:
        # Not repeated: it may be the secret, which others already read in the list of processes.
        raise click.UsageError(
            f"{option}: write where it is, not what it is: env:NAME, file:PATH or command:WORDS"
        )
    return {kind: words if kind == "command" else where}


def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text) if text else ""
    except yaml.YAMLError:
        return text
