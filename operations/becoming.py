"""Becoming root with a password that nobody sees: by standard input, ahead of the program.

pyinfra's own way puts the password into the command's words, where ``ps`` on the node shows it,
and asks for it node by node in the midst of a run.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO
from weakref import WeakKeyDictionary

import pyinfra.connectors.util
from gevent.lock import RLock
from pyinfra.api import HiddenValue, StringCommand
from pyinfra.api.command import QuoteString
from pyinfra.api.host import Host
from pyinfra.connectors.util import CommandOutput, make_unix_command

from plans.becoming import (
    ACCEPTED_MARK,
    ENOUGH_NEEDLESS,
    MOST_REFUSED,
    NEEDLESS_MARK,
    becoming_program,
    nobody_to_ask,
    not_tried,
    why_refused,
    wrong_password,
)
from plans.secrets import Secret

PATIENCE_S = 60
"""Seconds that a node has to take or refuse a password while others wait for that."""

_SUDO = ("_sudo", "_sudo_user", "_use_sudo_login", "_sudo_password", "_preserve_sudo_env")
_INNER = ("_env", "_chdir", "_shell_executable", "_su_user", "_use_su_login", "_su_shell",
          "_preserve_su_env", "_su_password", "_doas", "_doas_user")  # fmt: skip
"""Arguments of pyinfra's that belong to the command that runs when sudo has let it."""

_RUN = "run_shell_command"


class NotRoot(Exception):
    """The user who connects did not become root; the text says why and what to do."""

    code = "NEED_ROOT"


@dataclass
class Trial:
    """What the nodes so far said to one password."""

    is_open: bool = False
    needless: int = 0
    refusing: list[str] = field(default_factory=list)
    lock: RLock = field(default_factory=RLock)


@dataclass
class _Becoming:
    """What is known of a node: its password, and whether sudo needs one there."""

    password: Secret
    trial: Trial
    needed: bool | None = None

    @property
    def may_need(self) -> bool:
        """Whether sudo needs a password here, as far as is known."""
        return self.needed is not False


_known: WeakKeyDictionary[Host, _Becoming] = WeakKeyDictionary()


def ask_nobody() -> None:
    """Let a question of pyinfra's own for a sudo password end the command that met it."""

    def getpass(prompt: str = "", stream: TextIO | None = None) -> str:
        raise NotRoot(prompt)

    pyinfra.connectors.util.getpass = getpass


def become(host: Host, password: Secret | None, trial: Trial | None = None) -> None:
    """Let every command of a node that asks for sudo become root with this password.

    ``trial`` is shared by the nodes of a run that have the same one. With None as the password,
    and where sudo needs none, nothing is sent; where it then wants one, NotRoot is raised.
    """
    if password is not None:
        _known[host] = _Becoming(password, trial or Trial())
    run = getattr(host.connector, _RUN)

    def becoming(
        command: StringCommand,
        print_output: bool = False,
        print_input: bool = False,
        **arguments: Any,
    ) -> tuple[bool, CommandOutput]:
        shown = {"print_output": print_output, "print_input": print_input}
        known = _known.get(host)
        if arguments.get("_sudo") and known is not None and known.may_need:
            if known.needed is None:
                _wait_for_trial(host, known, run, arguments)
            if known.may_need:
                return _run(host, known, run, command, {**arguments, **shown})
        try:
            ok, output = run(command, **{**arguments, **shown, "_sudo_password": None})
        except NotRoot:  # from ask_nobody
            raise NotRoot(nobody_to_ask(_user(host))) from None
        return ok, output

    setattr(host.connector, _RUN, becoming)


def _wait_for_trial(host: Host, known: _Becoming, run: Any, arguments: dict[str, Any]) -> None:
    """Wait until a first node has taken the password, or try it here as the first.

    Raises NotRoot where sudo refuses it here, or has refused it on too many others.
    """
    trial = known.trial
    if trial.is_open:
        return
    with trial.lock:
        if trial.is_open:
            return
        if len(trial.refusing) >= MOST_REFUSED:
            raise NotRoot(not_tried(_user(host), trial.refusing))
        own = {key: value for key, value in arguments.items() if key in _SUDO}
        try:
            _run(host, known, run, StringCommand(":"), {**own, "_timeout": PATIENCE_S})
        except NotRoot:
            trial.refusing.append(host.name)
            raise
        trial.needless += known.needed is False
        trial.is_open = known.needed is True or trial.needless >= ENOUGH_NEEDLESS


def _run(
    host: Host, known: _Becoming, run: Any, command: StringCommand, arguments: dict[str, Any]
) -> tuple[bool, CommandOutput]:
    given = arguments.pop("_stdin", None)
    lines = list(given) if isinstance(given, list | tuple) else [given] if given else []
    whole = _wrapped(known, command, arguments)
    left = {key: value for key, value in arguments.items() if key not in (*_SUDO, *_INNER)}
    ok, output = run(
        whole, **left, _shell_executable=None, _stdin=[known.password.reveal(), *lines]
    )
    said = output.stderr_lines
    if (why := why_refused(said)) is not None:
        raise NotRoot(wrong_password(_user(host), why))
    if NEEDLESS_MARK in said or ACCEPTED_MARK in said:
        known.needed = NEEDLESS_MARK not in said
    kept = [one for one in output.combined_lines if one.line not in (NEEDLESS_MARK, ACCEPTED_MARK)]
    return ok, CommandOutput(kept)


def _wrapped(
    known: _Becoming, command: StringCommand, arguments: Mapping[str, Any]
) -> StringCommand:
    """Return the command that reads the password and runs ``command`` under sudo."""
    words = ["-H"]
    words += ["-i"] if arguments.get("_use_sudo_login") else []
    words += ["-E"] if arguments.get("_preserve_sudo_env") else []
    user = arguments.get("_sudo_user")
    words += ["-u", str(user)] if user else []
    inner = make_unix_command(
        command, **{key: value for key, value in arguments.items() if key in _INNER}
    )
    program = becoming_program(shlex.join(words), known=known.needed is True)
    # Shown by its name at -vv: it is the same every time.
    shown = HiddenValue(program, masked_value="sglang-sudo")  # type: ignore[no-untyped-call]
    return StringCommand("sh -c", QuoteString(shown), "sglang-sudo", inner)


def with_password(
    host: Host, command: StringCommand, arguments: Mapping[str, Any]
) -> tuple[StringCommand, bytes] | None:
    """Return the command that becomes root for a program whose streams are used directly, and the
    bytes to send it first; None where no password is needed."""
    known = _known.get(host)
    if not arguments.get("_sudo") or known is None or not known.may_need:
        return None
    return _wrapped(known, command, arguments), known.password.reveal().encode() + b"\n"


def _user(host: Host) -> str:
    return str(host.data.get("ssh_user") or "USER")
