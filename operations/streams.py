"""Bytes to and from a node while its apply lock is held: a piece at a time, shown as it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

from gevent.subprocess import PIPE, STDOUT, Popen
from paramiko import SSHException
from pyinfra.api import StringCommand
from pyinfra.api.host import Host
from pyinfra.api.output import echo
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput, OutputLine, make_unix_command_for_host
from typing_extensions import override

from operations.becoming import NotRoot, with_password
from operations.remote import give_back, refusal_of, say_failed, say_refused
from operations.tickets import held_of
from plans import text
from plans.applylock import locked
from plans.bundle import BundleError

PIECE = 256 * 1024
"""Bytes that are read or written at once."""

SILENCE_S = 300.0
"""Seconds without one byte after which a connection counts as lost."""

PROGRESS_S = 10.0
"""Seconds between two lines about how far it is."""

_OWN = ("_env", "_chdir", "_shell_executable", "_sudo", "_sudo_user", "_use_sudo_login",
        "_sudo_password", "_preserve_sudo_env", "_su_user", "_use_su_login", "_su_shell",
        "_preserve_su_env", "_su_password", "_doas", "_doas_user", "_temp_dir")  # fmt: skip
"""Arguments of pyinfra's that say as whom and how a command is run."""


class Pipe(Protocol):
    """The standard streams of a program on a node."""

    def write(self, data: bytes) -> None:
        """Send all of it."""

    def end(self) -> None:
        """Say that nothing more is sent."""

    def read(self) -> bytes:
        """Return what came next; nothing at the end."""

    def wait(self) -> tuple[int, str]:
        """Return how it ended, and what it said on standard error."""

    def abandon(self) -> None:
        """End it in the middle."""


class _Ssh:
    def __init__(self, client: Any, command: str, merged: bool) -> None:
        self._channel = client.get_transport().open_session()
        self._channel.settimeout(SILENCE_S)
        self._channel.set_combine_stderr(merged)
        self._channel.exec_command(command)

    def write(self, data: bytes) -> None:
        self._channel.sendall(data)

    def end(self) -> None:
        self._channel.shutdown_write()

    def read(self) -> bytes:
        return bytes(self._channel.recv(PIECE))

    def wait(self) -> tuple[int, str]:
        said = b""
        while piece := self._channel.recv_stderr(PIECE):
            said += piece
        return self._channel.recv_exit_status(), said.decode(errors="replace")

    def abandon(self) -> None:
        self._channel.close()


class _Local:
    def __init__(self, command: str, merged: bool) -> None:
        to = STDOUT if merged else PIPE
        self._process = Popen(["sh", "-c", command], stdin=PIPE, stdout=PIPE, stderr=to)

    def write(self, data: bytes) -> None:
        self._process.stdin.write(data)

    def end(self) -> None:
        self._process.stdin.close()

    def read(self) -> bytes:
        return bytes(self._process.stdout.read(PIECE))

    def wait(self) -> tuple[int, str]:
        said = self._process.stderr.read() if self._process.stderr else b""
        return int(self._process.wait()), said.decode(errors="replace")

    def abandon(self) -> None:
        self._process.kill()
        self._process.wait()


def _opened(state: State, host: Host, program: str, arguments: Any, *, merged: bool) -> Pipe:
    """Run a program on a node as the operation's own user. Raises BundleError where none can."""
    own = {key: value for key, value in arguments.items() if key in _OWN}
    becoming = with_password(host, StringCommand(program), own)
    command, first = becoming or (
        make_unix_command_for_host(state, host, StringCommand(program), **own),
        b"",
    )
    raw = command.get_raw_value()
    kind = type(host.connector).__name__
    if kind in ("SSHConnector", "LocalConnector"):
        pipe: Pipe = (
            _Ssh(host.connector.client, raw, merged)  # type: ignore[attr-defined]
            if kind == "SSHConnector"
            else _Local(raw, merged)
        )
        if first:
            pipe.write(first)
        return pipe
    raise BundleError("BUNDLE_FAILED", f"a bundle goes over SSH or stays here; this is {kind}")


class _Stream(StringCommand):
    """What both ways share: the lock, the progress, how a failure is told."""

    def __init__(self, program: str, what: str, total: int, clean: str) -> None:
        super().__init__(f": {what}; exec sh -s")
        self.program = program
        self.what = what
        self.total = total
        self.clean = clean

    def _move(self, pipe: Pipe, host: Host) -> None:
        raise NotImplementedError

    merged = True
    """Whether standard error is part of what the program says on standard output."""

    cleans_always = False
    """Whether ``clean`` is run after any failure, and not only where the bytes were no good."""

    @override
    def execute(self, state: State, host: Host, connector_arguments: Any) -> Any:
        connector_arguments.update(self.connector_arguments)
        held = held_of(host)
        # Not by standard input, which the bytes need. Nothing in it is secret.
        program = f": {self.what};\n{locked(self.program, held.ticket, held=held.taken)}"
        pipe: Pipe | None = None
        ok, bad = False, False
        try:
            pipe = _opened(state, host, program, connector_arguments, merged=self.merged)
            self._move(pipe, host)
            ok = self._judged(host, *self._ended(pipe))
            bad = not ok
        except BundleError as error:
            bad = True
            self._told(host, error)
        except (TimeoutError, OSError, EOFError, SSHException) as error:
            # What the program said at its end tells more than the pipe that broke by it.
            ended = self._why(pipe) if pipe is not None else None
            if ended is not None:
                # A full disk, as a rule: what has come would keep it full.
                bad = not self._judged(host, *ended)
            else:
                said = error or type(error).__name__
                say_failed(host, f"the connection was lost at: {self.what} ({said})")
        if not ok:
            if pipe is not None:
                pipe.abandon()
            if bad or self.cleans_always:
                self._cleaned(state, host, connector_arguments)
            give_back(state, host, connector_arguments)
        held.taken = ok
        return ok, CommandOutput([])

    def _ended(self, pipe: Pipe) -> tuple[int, str]:
        return pipe.wait()

    def _why(self, pipe: Pipe) -> tuple[int, str] | None:
        return None

    def _judged(self, host: Host, status: int, said: str) -> bool:
        refused = refusal_of(CommandOutput([OutputLine("stdout", x) for x in said.splitlines()]))
        if status != 0 and refused is not None:
            say_refused(host, refused)
        elif status != 0:
            # tar's own last word says that it failed; the reason stands before it.
            lines = [x for x in said.splitlines() if x.strip() and "Exiting with failure" not in x]
            say_failed(host, f"{self.what}: {lines[-1] if lines else f'it ended with {status}'}")
        return status == 0

    def _told(self, host: Host, error: BundleError) -> None:
        if error.code == "BUNDLE_FAILED":
            say_failed(host, f"{self.what}: {error.sentence}")
            return
        say_refused(host, error.refusal)

    def _cleaned(self, state: State, host: Host, arguments: Any) -> None:
        own = {key: value for key, value in arguments.items() if key in _OWN}
        # Where that fails too, the next run finds what is left, and goes on from it.
        with suppress(NotRoot, TimeoutError, OSError, EOFError, SSHException):
            host.run_shell_command(
                StringCommand(": clean up; exec sh -s"),
                **{**own, "_stdin": self.clean, "_timeout": 60},
            )


class Upload(_Stream):
    """Sends bytes to a program's standard input. ``clean`` is run where they were no good."""

    def __init__(
        self, program: str, what: str, pieces: Callable[[], Iterable[bytes]], total: int, clean: str
    ) -> None:
        super().__init__(program, what, total, clean)
        self.pieces = pieces

    @override
    def _move(self, pipe: Pipe, host: Host) -> None:
        tell = _Progress(host, "sent", self.total)
        for piece in self.pieces():
            pipe.write(piece)
            tell(len(piece))
        pipe.end()

    @override
    def _ended(self, pipe: Pipe) -> tuple[int, str]:
        said = b""
        while piece := pipe.read():
            said += piece
        return pipe.wait()[0], said.decode(errors="replace")

    @override
    def _why(self, pipe: Pipe) -> tuple[int, str] | None:
        try:
            status, said = self._ended(pipe)
        except (TimeoutError, OSError, EOFError, SSHException):
            return None
        return (status, said) if said.strip() and status > 0 else None


class Download(_Stream):
    """Takes bytes from a program's standard output; ``clean`` is run where that fails."""

    merged = False
    cleans_always = True

    def __init__(
        self, program: str, what: str, take: Callable[[bytes], None], total: int, clean: str
    ) -> None:
        super().__init__(program, what, total, clean)
        self.take = take

    @override
    def _move(self, pipe: Pipe, host: Host) -> None:
        pipe.end()
        tell = _Progress(host, "fetched", self.total)
        while piece := pipe.read():
            try:
                self.take(piece)
            except OSError as error:
                raise BundleError(
                    "BUNDLE_FAILED", f"it could not be written: {error.strerror or error}"
                ) from None
            tell(len(piece))


class _Progress:
    def __init__(self, host: Host, word: str, total: int) -> None:
        self._host, self._word, self._total = host, word, total
        self._done, self._told = 0, time.monotonic()

    def __call__(self, count: int) -> None:
        self._done += count
        if time.monotonic() - self._told >= PROGRESS_S:
            self._told = time.monotonic()
            done, total = text.size(self._done), text.size(self._total)
            echo(f"{self._host.print_prefix}{self._word} {done} of {total}", err=True)
