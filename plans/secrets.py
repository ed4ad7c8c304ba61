"""Secrets in memory, and the files on a node that hold them.

A ``Secret`` shows itself to nobody: not in a repr, a traceback, a copy of a
record as a dictionary, or JSON. Only the program that writes it has its value.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

from facts.records import Survey, known
from plans import paths

MASK = "*MASKED*"

LONGEST = 4096
"""Characters of the longest secret: what HTTP servers take of a header is 8 KiB and more."""

SHORTEST_KEY = 8
"""Characters of the shortest API key that is not refused as a slip of the hand."""

BEARER = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""What a Bearer token may be (RFC 6750, section 2.1): it needs no quoting anywhere."""


class Secret:
    """A text that shows itself to nobody."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value: for the program that writes it, and for the hub."""
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, form: str) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(
            self._value.encode(), other._value.encode()
        )

    def __hash__(self) -> int:
        return hash(("Secret", self._value))

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")


def token_problem(text: str, *, is_key: bool) -> str | None:
    """Return what is wrong with a secret's text, or None; never the text itself.

    Takes it without the one line break at its end.
    """
    if not text.strip():
        return "is empty"
    if "\n" in text or "\r" in text:
        return "has several lines: a token is one"
    if len(text) > LONGEST:
        return f"has {len(text)} characters: at most {LONGEST}"
    if not BEARER.fullmatch(text) or text.startswith("-"):
        return (
            "holds other characters than a Bearer token may (letters, digits and - . _ ~ + /, "
            "with = at the end; RFC 6750), or begins with a dash"
        )
    if is_key and len(text) < SHORTEST_KEY:
        return f"has fewer than {SHORTEST_KEY} characters: openssl rand -hex 32 makes one"
    return None


@dataclass(frozen=True)
class NodeSecrets:
    """The secrets of one node as the controller read them; ``unread`` are sentences."""

    hub_token: Secret | None = None
    keys: Mapping[str, Mapping[str, Secret]] = field(default_factory=dict)  # service -> flag -> key
    unread: tuple[str, ...] = ()


NONE = NodeSecrets()


@cache
def fingerprint(secret: Secret, salt: str) -> str:
    """Return a slow checksum of a secret: as long as one guess of it takes.

    16 MiB and about 50 ms each (scrypt, RFC 7914, with the parameters of its
    interactive use). The plain checksum of a file that holds a secret could be
    tried out for every guess; where this stands in the file too, it cannot.
    """
    made = hashlib.scrypt(
        secret.reveal().encode(),
        salt=f"pyinfra-sglang {salt}".encode(),
        n=2**14,
        r=8,
        p=1,
        dklen=16,
    )
    return made.hex()


@dataclass(frozen=True)
class SecretFile:
    """A file of the node that only root reads."""

    path: str
    content: Secret

    @property
    def sha256(self) -> str:
        """The checksum of its content, as sha256sum prints it."""
        return hashlib.sha256(self.content.reveal().encode()).hexdigest()


def hub_token_files(token: Secret) -> tuple[SecretFile, SecretFile]:
    """Return the hub token as it stands on a node, and beside it what tells whether it changed."""
    mark = f"{fingerprint(token, paths.HUB_TOKEN)}\n"
    return (
        SecretFile(paths.credential(paths.HUB_TOKEN), Secret(f"{token.reveal()}\n")),
        SecretFile(paths.credential(paths.HUB_TOKEN_MARK), Secret(mark)),
    )


def key_file(service: str, number: int, server_yaml: str, keys: Mapping[str, Secret]) -> SecretFile:
    """Return what SGLang's ``--config`` reads where a service holds keys.

    ``server_yaml`` is the text of the deployment's own file; SGLang takes one
    ``--config`` alone, so this is that file with the keys. Programs on the node
    find the key by its line: a Bearer token needs no quoting.
    """
    lines = ["# The keys of this service: only root reads this file."]
    lines += [f"# {flag}: {fingerprint(key, f'{service} {flag}')}" for flag, key in keys.items()]
    lines += [f'{flag}: "{key.reveal()}"' for flag, key in keys.items()]
    text = server_yaml + "\n".join(lines) + "\n"
    return SecretFile(paths.key_file(service, number), Secret(text))


def is_there(survey: Survey, file: SecretFile) -> bool:
    """Say whether a node has this very file, for root alone."""
    there = survey.files.get(file.path)
    return there is not None and there.sha256 == file.sha256 and there.mode == "0600"


def hub_token_is_there(survey: Survey, token: Secret) -> bool:
    """Say whether a node has this hub token; its own checksum does not travel, its mark's does."""
    file, mark = hub_token_files(token)
    there = survey.files.get(file.path)
    return (
        there is not None
        and there.exists
        and known(there.mode)
        and there.mode == "0600"
        and is_there(survey, mark)
    )
