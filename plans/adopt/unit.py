"""A systemd unit as ``systemctl cat`` prints it, read as systemd would."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from plans.adopt.commands import server_in
from plans.adopt.data import adopt_data
from plans.adopt.docker_run import find_run, not_docker, other_engine
from plans.adopt.masked import public
from plans.adopt.records import Command, Note
from plans.adopt.shell import filled_words

_ESCAPES = {"n": "\n", "t": "\t", "s": " ", "r": "\r"}


@dataclass(frozen=True)
class Unit:
    """What a unit says of the server that it runs."""

    words: tuple[str, ...]  # of ExecStart=, variables filled in
    run: tuple[str, ...] | None  # what follows docker run, where the unit runs that
    command: Command | None  # the server, where the unit runs it itself
    environment: Mapping[str, str]
    user: str | None
    directory: str | None
    kill_mode: str
    restart: str
    stops: tuple[str, ...]  # what ExecStop= says
    lost: tuple[Note, ...]


def read_unit(text: str, files: Mapping[str, str] | None = None, name: str = "") -> Unit:
    """Return what a unit runs: its file, and its drop-ins behind it, as one text.

    ``files`` are the texts of its ``EnvironmentFile=`` by path, where they were read; ``name`` is
    the unit's, for its instance.
    """
    instance = name.removesuffix(".service").partition("@")[2]
    own = {"i": instance, "I": instance, "n": name, "N": name.removesuffix(".service"), "%": "%%"}
    lines = [
        (key, re.sub("%(.)", lambda found: own.get(found[1], found[0]), value))
        for key, value in settings(text)
    ]
    last: dict[str, str] = {}
    execs: dict[str, list[str]] = {}
    environment: dict[str, str] = {}
    named: list[str] = []
    for key, value in lines:
        if key.startswith("Exec"):
            execs[key] = [*execs.get(key, []), value] if value else []
        elif key == "Environment":
            pairs = [word.partition("=") for word in split(value)]
            environment = {**environment, **{n: v for n, _, v in pairs}} if value else {}
        elif key == "EnvironmentFile":
            named = [*named, value] if value else []
        else:
            last[key] = value
    lost: list[Note] = []
    for value in named:
        path = value.removeprefix("-")
        if files is not None and path in files:
            environment |= environment_file(files[path])
        else:
            why = "its variables were not read: write them into environment"
            lost.append(Note(f"EnvironmentFile={path}", why))
    starts = execs.get("ExecStart", [])
    written = split(starts[-1].lstrip("@-:+!|")) if starts else []
    words, _ = filled_words(written, environment)
    _, unknown = filled_words(public(written), environment)
    for name in sorted(unknown):
        lost.append(Note(f"${name} of ExecStart=", "no value of it was found: write it yourself"))
    data = adopt_data()
    for key in (*execs, *last):
        if key in data.unit and last.get(key, "x") not in ("root", "no", "false"):
            lost.append(Note(f"{key}=", data.unit[key]))
        elif key in data.unit_limits:
            lost.append(Note(f"{key}={last.get(key, '')}", data.unit_limit))
    run = find_run(words)
    if (engine := other_engine(words)) is not None:
        lost.append(not_docker(engine))
    return Unit(
        words=tuple(words),
        run=run,
        command=None if run else server_in(words, environment),
        environment=_of_server(environment, written),
        user=last.get("User"),
        directory=last.get("WorkingDirectory"),
        kill_mode=last.get("KillMode", "control-group"),
        restart=last.get("Restart", "no"),
        stops=tuple(execs.get("ExecStop", ())),
        lost=tuple(lost),
    )


def _of_server(environment: Mapping[str, str], written: list[str]) -> dict[str, str]:
    """Return the variables without those that only fill in ExecStart=."""
    begins = adopt_data().server_variables
    filling = {name for name in environment if re.search(rf"\$\{{?{name}\b", " ".join(written))}
    return {
        name: value
        for name, value in environment.items()
        if name not in filling or name.startswith(begins)
    }


def settings(text: str) -> list[tuple[str, str]]:
    """Return the settings of a unit in order, continued lines joined; an empty value resets."""
    joined: list[str] = []
    open_ = False
    for line in text.splitlines():
        bare = line.strip()
        if bare[:1] in ("#", ";"):  # also between continued lines
            continue
        if open_:
            joined[-1] += " " + bare.removesuffix("\\")
        else:
            joined.append(bare.removesuffix("\\"))
        open_ = bare.endswith("\\")
    pairs = [line.partition("=") for line in joined if "=" in line and not line.startswith("[")]
    return [(key.strip(), value.strip()) for key, _, value in pairs]


def split(text: str) -> list[str]:
    """Return the words of a setting as systemd splits them; ``%%`` is a percent sign."""
    found: list[str] = []
    word, quote, begun = "", "", False
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\" and quote != "'" and at < len(text):
            word += _ESCAPES.get(text[at], text[at])
            at, begun = at + 1, True
        elif quote:
            if char == quote:
                quote = ""
            else:
                word += char
        elif char in "\"'":
            quote, begun = char, True
        elif char.isspace():
            if word or begun:
                found.append(word)
            word, begun = "", False
        else:
            word, begun = word + char, True
    if word or begun:
        found.append(word)
    return [one.replace("%%", "%") for one in found]


def environment_file(text: str) -> dict[str, str]:
    """Return the variables of an ``EnvironmentFile=``."""
    found = {}
    for line in text.replace("\\\n", "").splitlines():
        pair = re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", line)
        if pair:
            found[pair[1]] = (
                "".join(split(pair[2].strip())) if pair[2][:1] in "\"'" else pair[2].strip()
            )
    return found
