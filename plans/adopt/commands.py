"""Finds SGLang's server in the words that start it, through shells and other programs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from plans.adopt.masked import public
from plans.adopt.records import Command, Note
from plans.adopt.shell import ASSIGNMENT, commands, filled_words

_SHELLS = {"sh", "bash", "dash", "ash", "zsh"}
_QUIET = {"set", "cd", "export", "true", ":", "echo", "source", ".", "ulimit", "wait", "trap"}
_PINNING = {"numactl", "taskset", "chrt", "nice", "ionice"}


def server_in(words: Sequence[str], environment: Mapping[str, str] | None = None) -> Command | None:
    """Return the server that some words start, or None where they start another program.

    ``environment`` fills in the variables of a shell's text.
    """
    known = dict(environment or {})
    script = _script_of(words)
    if script is not None:
        return _in_shell(script, known)
    start = _start(words)
    if start is None:
        return None
    first, arguments = start
    before = list(words[:first])
    assigned = {m[1]: m[2] for word in before if (m := ASSIGNMENT.fullmatch(word))}
    program = next(
        (word for word in reversed(words[: first + 1]) if not word.startswith("-")), words[first]
    )
    lost = tuple(
        Note(name, "the service is not pinned by hand: SGLang binds its workers itself")
        for name in _PINNING
        if any(PurePosixPath(word).name == name for word in before)
    )
    given = list(words[arguments:])
    if words[arguments - 1] == "serve" and given and not given[0].startswith("-"):
        # `sglang serve MODEL`, as sglang/cli/serve.py reads it; launch_server takes no such word.
        given.insert(0, "--model-path")
    return Command(tuple(given), assigned, program, lost=lost)


def in_text(text: str, environment: Mapping[str, str] | None = None) -> Command | None:
    """Return the server that a shell's text starts, or None. Raises ValueError for a broken one."""
    return _in_shell(text, dict(environment or {}))


def _start(words: Sequence[str]) -> tuple[int, int] | None:
    """Return where the program that serves stands, and where its arguments begin."""
    for i, word in enumerate(words):
        name = PurePosixPath(word).name
        following = words[i + 1] if i + 1 < len(words) else ""
        if name == "sglang" and following == "serve":
            return i, i + 2
        if word.endswith("sglang/launch_server.py"):
            return max(0, i - 1), i + 1
        if word == "-m" and following == "sglang.launch_server":
            return max(0, i - 1), i + 2
    return None


def _script_of(words: Sequence[str]) -> str | None:
    """Return the text that a shell among the words is given with -c."""
    for i, word in enumerate(words):
        if PurePosixPath(word).name not in _SHELLS:
            continue
        for j in range(i + 1, len(words) - 1):
            if re.fullmatch(r"-[a-z]*c[a-z]*", words[j]):
                return words[j + 1]
            if not words[j].startswith("-"):
                break
    return None


def _in_shell(text: str, known: dict[str, str]) -> Command | None:
    said: dict[str, str] = {}
    exports: set[str] = set()
    lost: list[Note] = []
    found: Command | None = None
    every = commands(text)
    for words in every:
        keyword = words[0] in ("export", "declare")
        exported = words[1:] if keyword else words
        pairs = [ASSIGNMENT.fullmatch(word) for word in exported]
        if all(pairs) and exported:
            for pair in pairs:
                assert pair is not None
                (value,), _ = filled_words([pair[2]], {**known, **said})
                said[pair[1]] = value
                exports |= {pair[1]} if keyword else set()
            continue
        one = server_in(words, {**known, **said})
        if one is None:
            name = PurePosixPath(words[0]).name
            if name not in _QUIET:
                lost.append(
                    Note(f"the command {name} beside it", "the service runs the server alone")
                )
            continue
        if found is not None:
            lost.append(
                Note("a second server in one script", "read it on its own: adopt --from FILE")
            )
            continue
        values = {**known, **said, **one.environment}
        full, _ = filled_words(one.words, values)
        _, unknown = filled_words(public(one.words), values)
        for name in sorted(unknown):
            why = "only the shell that started it knew its value; write it into the entry"
            lost.append(Note(f"${name} of the command line", why))
        # Of a single command a shell makes itself the program.
        by_shell = one.by_shell or (words[0] != "exec" and len(every) > 1)
        found = replace(one, words=tuple(full), by_shell=by_shell)
    if found is None:
        return None
    return replace(
        found,
        environment={**{k: v for k, v in said.items() if k in exports}, **found.environment},
        lost=(*found.lost, *dict.fromkeys(lost)),
    )
