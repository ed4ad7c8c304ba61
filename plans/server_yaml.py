"""``server.yaml``: the server's arguments, read by SGLang's own ``--config``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from plans.network import scheduler_port
from plans.wishes import Service


class ArgumentRefused(ValueError):
    """An argument that SGLang's ``--config`` cannot carry; the text says what to write."""


def server_arguments(
    service: Service, release: str, revision: str | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all arguments of the server: ours first, then the operator's, by flag name.

    ``given`` are the operator's, by flag name with dashes. Raises ArgumentRefused.
    """
    ours: dict[str, Any] = {
        # Inside the container; what the node publishes is the service's own address.
        "host": service.address if service.network == "host" else "0.0.0.0",
        "port": service.port,
        "served-model-name": service.public_name,
        "tp-size": service.tp_size,
        "enable-metrics": True,
    }
    if service.network == "host":
        # Left alone it is another one at each start, on all addresses of the node.
        ours["nccl-port"] = scheduler_port(service)
    if revision is not None:
        ours["revision"] = revision
    if service.kind in ("embed", "rerank"):
        ours["is-embedding"] = True
    if service.rank is not None:
        ours |= {"nnodes": len(service.nodes), "node-rank": service.rank}
    return ours | {name: _checked(name, value) for name, value in given.items()}


def _checked(name: str, value: Any) -> Any:
    # The reader turns the file into an argument list (server_args_config_parser.py): None
    # becomes the word "None", an item of a list goes through str(), and a text that begins
    # with a dash would be taken for a flag.
    if value is None:
        raise ArgumentRefused(f"{name} is null: leave it out to have the server's default")
    if isinstance(value, list | tuple):
        return [_item(name, item) for item in value]
    if isinstance(value, str):
        return _text(name, value)
    return value


def _item(name: str, item: Any) -> Any:
    if item is None:
        raise ArgumentRefused(f"{name} holds null: write a value")
    if isinstance(item, dict | list | tuple):
        return json.dumps(item, ensure_ascii=False)
    if isinstance(item, bool):
        return str(item).lower()
    return _text(name, item) if isinstance(item, str) else item


def _text(name: str, text: str) -> str:
    # SGLang splits it at its colons: https://github.com/sgl-project/sglang/issues/3949
    if name == "dist-init-addr" and text.count(":") > 1 and not text.startswith("["):
        address, _, port = text.rpartition(":")
        raise ArgumentRefused(f"{name} is {text!r}: write an IPv6 address as [{address}]:{port}")
    if text.startswith("-"):
        raise ArgumentRefused(
            f"{name} is {text!r}: SGLang's --config takes a text that begins with a dash for a flag"
        )
    return text


class _Dumper(yaml.SafeDumper):
    """Writes every text so that it is read back as it is."""


def _written(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    # Between single quotes PyYAML leaves these as they are, and reads them as line breaks.
    style = '"' if set(text) & set("\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _written)


def server_yaml(arguments: Mapping[str, Any], comment: str) -> str:
    """Return the text of ``server.yaml``; every value arrives at the server as it is here."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + yaml.dump(
        dict(arguments),
        Dumper=_Dumper,
        allow_unicode=True,
        sort_keys=False,
        width=10_000,
        default_flow_style=False,
    )


def check_words(arguments: Mapping[str, Any]) -> None:
    """Check arguments that ``--config`` cannot carry. Raises ArgumentRefused.

    They pass through a line of ``launch.env``, which holds no line break.
    """
    for name, value in arguments.items():
        if any(char in word for word in command_line({name: value}) for char in "\n\r\0"):
            raise ArgumentRefused(
                f"{name} holds a line break: SGLang's --config cannot carry {name}, and a "
                "command line cannot carry line breaks"
            )


def command_line(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of arguments that ``--config`` cannot carry."""
    words: list[str] = []
    for name, value in arguments.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False:
            items = value if isinstance(value, list) else [value]
            texts = (
                json.dumps(i, ensure_ascii=False) if isinstance(i, dict) else str(i) for i in items
            )
            words += [f"--{name}", *texts]
    return tuple(words)
