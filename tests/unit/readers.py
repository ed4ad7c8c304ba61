"""How others read what we write, written again from their sources: systemd, Docker, SGLang."""

from __future__ import annotations

import json
from typing import Any

import yaml


def environment_file(text: str) -> dict[str, str]:
    """Read an ``EnvironmentFile=`` as systemd does (env-file.c), for double-quoted values."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        if not line or line.startswith(("#", ";")):
            continue
        name, _, rest = line.partition("=")
        assert rest.startswith('"'), line
        value, place = "", 1
        while rest[place] != '"':
            if rest[place] == "\\":
                place += 1
                # Only these are escapes between double quotes; else the backslash stays.
                value += "" if rest[place] in '"\\`$' else "\\"
            value += rest[place]
            place += 1
        assert place == len(rest) - 1, line
        found[name] = value
    return found


def split_words(text: str) -> list[str]:
    """Split an unbraced ``$VARIABLE`` of ``ExecStart=`` as systemd does (extract-word.c)."""
    words: list[str] = []
    place = 0
    while True:
        while place < len(text) and text[place] in " \t\n\r":
            place += 1
        if place == len(text):
            return words
        word, quote = "", ""
        while place < len(text):
            char = text[place]
            if char == "\\":
                place += 1
                word += text[place]
            elif quote:
                quote = "" if char == quote else quote
                word += "" if not quote else char
            elif char in "'\"":
                quote = char
            elif char in " \t\n\r":
                break
            else:
                word += char
            place += 1
        words.append(word)


def docker_env_file(text: str) -> dict[str, str]:
    """Read a file of ``docker run --env-file`` (opts/file.go of the docker client)."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        line = line.lstrip(" \t")
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found[name] = value
    return found


def server_arguments(text: str, switches: frozenset[str]) -> list[str]:
    """Return the argument list that SGLang makes of ``--config`` (server_args_config_parser.py).

    ``switches`` are the flags that take no value.
    """
    words: list[str] = []
    for key, value in yaml.safe_load(text).items():
        flag = f"--{key}"
        if isinstance(value, bool):
            if key in switches:
                words += [flag] if value else []
            else:
                words += [flag, str(value).lower()]
        elif isinstance(value, list):
            words += [flag, *(str(item) for item in value)] if value else []
        elif isinstance(value, dict):
            words += [flag, json.dumps(value)]
        else:
            words += [flag, str(value)]
    return words


def unit(text: str) -> dict[str, list[str]]:
    """Read the settings of a unit or drop-in by name, each with all its values."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith(("#", ";", "[")):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def flags(words: list[str]) -> dict[str, Any]:
    """Return the last value of each flag of an argument list; True for one without."""
    found: dict[str, Any] = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = True if after.startswith("--") else after
    return found
