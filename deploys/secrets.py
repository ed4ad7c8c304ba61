"""Reads the operator's secrets on the controller: each once per run, shown to nobody."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from plans import paths
from plans.secrets import LONGEST, MASK, NodeSecrets, Secret, token_problem
from plans.sources import Source
from plans.wishes import Wishes

PATIENCE_S = 60
"""Seconds that a command may take: someone may have to touch a key or type a PIN."""

INTERRUPT_S = 1
"""Seconds in which an interrupt that ended a command comes here as well."""

MOST_BYTES = 4 * LONGEST + 2
"""What is read of a file or a command: more is no secret, and is not kept in memory."""


class SecretUnread(Exception):
    """A secret could not be read; the text says why and never has it."""


@dataclass
class Reader:
    """Reads sources, each once; ``warn`` gets what is worth a sentence."""

    warn: Callable[[str], None]
    _read: dict[Source, str | SecretUnread] = field(default_factory=dict, repr=False)

    def read(self, source: Source, *, is_key: bool) -> Secret:
        """Return the secret that a source gives. Raises SecretUnread."""
        return self.read_checked(source, lambda text: token_problem(text, is_key=is_key))

    def read_checked(self, source: Source, problem_of: Callable[[str], str | None]) -> Secret:
        """Return what a source gives unless ``problem_of`` says what is wrong with it.

        Raises SecretUnread.
        """
        if source not in self._read:
            try:
                self._read[source] = self._text(source)
            except SecretUnread as error:
                self._read[source] = error
        text = self._read[source]
        if isinstance(text, SecretUnread):
            raise text
        problem = problem_of(text)
        if problem is not None:
            raise SecretUnread(f"{source} {problem}")
        return Secret(text)

    def _text(self, source: Source) -> str:
        if source.env is not None:
            value = os.environ.get(source.env)
            if value is None:
                raise SecretUnread(f"{source} is not set on the controller")
            raw = value.encode(errors="surrogateescape")
        elif source.file is not None:
            raw = self._of_file(Path(source.file).expanduser(), source)
        else:
            raw = self._of_command(source.command or (), source)
        if len(raw) > MOST_BYTES:
            raise SecretUnread(f"{source} gives more than {LONGEST} characters")
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise SecretUnread(f"{source} gives something that is no text") from None
        return text.removesuffix("\n").removesuffix("\r")

    def _of_file(self, path: Path, source: Source) -> bytes:
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                if stat.S_ISDIR(mode):
                    raise IsADirectoryError(21, "is a directory")
                if stat.S_ISREG(mode) and mode & 0o044:
                    self.warn(f"{path} can be read by others on this machine: chmod 600 {path}")
                return file.read(MOST_BYTES + 1)
        except OSError as error:
            why = (error.strerror or type(error).__name__).lower()
            raise SecretUnread(f"{source} could not be read: {why}") from None

    def _of_command(self, words: tuple[str, ...], source: Source) -> bytes:
        try:
            ended = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SecretUnread(f"{source} did not end within {PATIENCE_S} s") from None
        except OSError as error:
            why = (error.strerror or type(error).__name__).lower()
            raise SecretUnread(f"{source} could not be started: {why}") from None
        if ended.returncode in (-signal.SIGINT, 128 + signal.SIGINT):
            # Ctrl-C is for both: our own is on its way, and comes while this sleeps.
            time.sleep(INTERRUPT_S)
            raise KeyboardInterrupt
        self._say_errors(ended.stderr, ended.stdout, source)
        if ended.returncode != 0:
            raise SecretUnread(f"{source} ended with {ended.returncode}")
        return ended.stdout

    def _say_errors(self, errors: bytes, output: bytes, source: Source) -> None:
        """Show what a command says on stderr, without what it printed on stdout."""
        secret = output.strip()
        shown = errors.replace(secret, MASK.encode()) if secret else errors
        for line in shown[-4096:].decode(errors="replace").splitlines():
            if line.strip():
                self.warn(f"{source}: {line if line.isprintable() else ascii(line)}")


def read_secrets(reader: Reader, wishes: Wishes) -> NodeSecrets:
    """Return the secrets that one node's wishes name; what could not be read is in ``unread``."""
    unread: list[str] = []

    def read(source: Source | None, what: str, *, is_key: bool) -> Secret | None:
        if source is None:
            return None
        try:
            return reader.read(source, is_key=is_key)
        except SecretUnread as error:
            unread.append(f"{what}: {error}")
            return None

    hub_token = read(wishes.secrets.hub_token, "secrets.hub_token", is_key=False)
    keys: dict[str, Mapping[str, Secret]] = {}
    for service in wishes.services:
        held = {
            flag: read(source, f"services[{service.name}].{flag.replace('-', '_')}", is_key=True)
            for flag, source in service.keys.items()
        }
        keys[service.name] = {flag: key for flag, key in held.items() if key is not None}
    of_door = {
        str(at): read(source, f"door.keys[{at}]", is_key=True)
        for at, source in enumerate(wishes.door.keys if wishes.door else ())
    }
    if wishes.door:
        keys[paths.DOOR] = {at: key for at, key in of_door.items() if key is not None}
    return NodeSecrets(hub_token, keys, tuple(unread))
