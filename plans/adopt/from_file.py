"""Servers of a text that somebody kept: a command line, a script, a compose file, a unit."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plans.adopt.commands import in_text, server_in
from plans.adopt.compose import read_compose
from plans.adopt.docker_run import find_run, not_docker, other_engine, read_run
from plans.adopt.gathered import servers_of_inspect
from plans.adopt.masked import public
from plans.adopt.records import Command, Container, Found, Mount, Note, NotReadable
from plans.adopt.shell import ASSIGNMENT, commands, filled_words
from plans.adopt.stops import PATIENCE_S, stop_container, stop_unit
from plans.adopt.unit import read_unit

HOME = "/root"
"""Whose home ``~`` is where a text does not say who typed it."""


def read_text(text: str, name: str) -> list[Found]:
    """Return the servers that a file starts. ``name`` is the file's, whose ending tells its kind.

    Raises NotReadable where there is none.
    """
    try:
        if name.endswith((".yml", ".yaml")):
            found = _compose(text)
        elif name.endswith(".json"):
            found = servers_of_inspect(_inspected(text))
        elif name.endswith((".service", ".conf")) or "\nExecStart=" in f"\n{text}":
            found = _unit(text, name)
        else:
            found = _shell(text)
    except RecursionError:
        raise NotReadable("is nested too deeply") from None
    except NotReadable:
        raise
    except ValueError as error:
        raise NotReadable(f"cannot be read: {error}") from None
    if not found:
        raise NotReadable(
            "starts no server of SGLang: no `sglang serve`, no `python -m sglang.launch_server`"
        )
    return found


def _home(mount: Mount) -> Mount:
    if not mount.source.startswith("~/"):
        return mount
    return replace(mount, source=f"{HOME}{mount.source[1:]}")


def _compose(text: str) -> list[Found]:
    found = []
    for name, container in read_compose(text, None, {"HOME": HOME}).items():
        one = _started(name, container, {"com.docker.compose.service": name})
        found += [one] if one else []
    return found


def _started(name: str, container: Container, labels: Mapping[str, str]) -> Found | None:
    command = server_in(container.words, container.environment)
    if command is None:
        return None
    stop, ends = stop_container(name, container, {}, command, None)
    if labels:
        # The name of its container is not in the file.
        stop = (f"docker compose stop --timeout {PATIENCE_S} {name}",)
        stop += (f"docker compose rm --force {name}",) if container.restart != "no" else ()
    return Found(
        "container",
        name,
        f"container {name}" if name else "the container",
        command,
        container=container,
        stop=stop if name else (),
        ends=ends,
    )


def _inspected(text: str) -> list[Mapping[str, Any]]:
    document = json.loads(text)
    items = document if isinstance(document, list) else [document]
    if not all(isinstance(one, Mapping) and "Config" in one for one in items):
        raise NotReadable("is no output of docker inspect")
    return items


def _unit(text: str, name: str) -> list[Found]:
    unit = read_unit(text, None, name)
    stop, ends = stop_unit(name, unit, None)
    if unit.run is not None:
        container, own = read_run(unit.run)
        command = server_in(container.words, container.environment)
        if command is None:
            return []
        where = f"unit {name} (container {own or 'without a name'})"
        return [Found("unit", name, where, command, unit.environment, container, lost=unit.lost,
                      stop=stop, ends=ends)]  # fmt: skip
    if unit.command is None:
        return []
    return [
        Found("unit", name, f"unit {name}", unit.command, unit.environment,
              home=f"/home/{unit.user}" if unit.user not in (None, "root") else "/root",
              directory=unit.directory, lost=unit.lost, stop=stop, ends=ends)
    ]  # fmt: skip


def _shell(text: str) -> list[Found]:
    found: list[Found] = []
    said: dict[str, str] = {"HOME": HOME}
    for words in commands(text):
        exported = words[1:] if words[0] in ("export", "declare") else words
        pairs = [ASSIGNMENT.fullmatch(word) for word in exported]
        if exported and all(pairs):
            for pair in pairs:
                assert pair is not None
                said[pair[1]] = filled_words([pair[2]], said)[0][0]
            continue
        run, engine = find_run(words), other_engine(words)
        if run is None:
            continue
        words, _ = filled_words(run, said)
        _, unknown = filled_words(public(run), said)
        container, name = read_run(words)
        why = "only the shell that it was typed in knew its value: write it into the entry"
        lost = [Note(f"${one} of the command line", why) for one in sorted(unknown)]
        mounts = tuple(_home(mount) for mount in container.mounts)
        if mounts != container.mounts:
            lost.append(Note("~ of the command line", f"taken for {HOME}: write the home meant"))
        container = replace(container, mounts=mounts, lost=(*container.lost, *lost))
        one = _started(name or "", container, {})
        if one and engine:
            stop = tuple(re.sub("^docker ", f"{engine} ", each) for each in one.stop)
            one = replace(one, stop=stop, lost=(*one.lost, not_docker(engine)))
        found += [one] if one else []
    if found:
        return found
    command: Command | None = in_text(text)
    if command is None:
        return []
    return [Found("process", "sglang", "the command line", command)]
