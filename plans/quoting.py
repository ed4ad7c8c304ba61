"""Quoting for systemd, which is not the shell's.

An ``EnvironmentFile=`` value and the words of an unbraced ``$VARIABLE`` in
``ExecStart=`` are read by two parsers of systemd's own (systemd.exec(5) and
systemd.service(5), "Command lines").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_SPECIAL = re.compile(r'["\\`$]')


class QuotingError(ValueError):
    """A value that the format cannot carry."""


def environment_file(values: Mapping[str, str], comment: str = "") -> str:
    """Return the text of a systemd ``EnvironmentFile=`` with these values.

    Every value is double-quoted, with ``\\`` before each character that is
    special there. Raises QuotingError for a value with a line break or a NUL.
    """
    lines = [f"# {line}" for line in comment.splitlines()]
    for name, value in values.items():
        _no_control(name, value)
        escaped = _SPECIAL.sub(r"\\\g<0>", value)
        lines.append(f'{name}="{escaped}"')
    return "\n".join(lines) + "\n"


def words(items: Iterable[str]) -> str:
    """Return one value that ``$VARIABLE`` in ``ExecStart=`` splits into just these words."""
    quoted = []
    for item in items:
        if item and not set(item) & set(" \t\"'\\"):
            quoted.append(item)
        else:
            escaped = "".join(f"\\{char}" if char in '"\\' else char for char in item)
            quoted.append(f'"{escaped}"')
    return " ".join(quoted)


def docker_env_file(values: Mapping[str, str], comment: str = "") -> str:
    """Return the text of a file for ``docker run --env-file``.

    It has one ``NAME=value`` a line, taken as it stands: no quoting, no
    expansion, and so no line breaks. Raises QuotingError where a value has one.
    """
    lines = [f"# {line}" for line in comment.splitlines()]
    for name, value in values.items():
        _no_control(name, value)
        lines.append(f"{name}={value}")
    return "\n".join(lines) + "\n"


def _no_control(name: str, value: str) -> None:
    for char in ("\n", "\r", "\0"):
        if char in value:
            raise QuotingError(f"{name} holds a line break or NUL: {value!r}")
