"""The WWW-Authenticate header: how a registry says what it wants to see first (RFC 9110, 11.6)."""

import re
from dataclasses import dataclass, field

_WORD = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_PIECE = re.compile(rf'\s*,?\s*({_WORD})(?:\s*=\s*(?:"((?:[^"\\]|\\.)*)"|({_WORD}|[^\s,"]+)))?')


@dataclass(frozen=True)
class Challenge:
    """One way to authenticate: `scheme` in lower case, and its parameters."""

    scheme: str
    parameters: dict[str, str] = field(default_factory=dict)


def parse_challenges(header: str) -> list[Challenge]:
    """Return the challenges in a header, in its order; what cannot be read ends the list."""
    found: list[Challenge] = []
    place = 0
    while place < len(header):
        piece = _PIECE.match(header, place)
        if piece is None:
            break
        place = piece.end()
        name, quoted, bare = piece.groups()
        if quoted is None and bare is None:
            found.append(Challenge(name.lower()))
        elif found:
            value = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else bare
            found[-1].parameters[name.lower()] = value
        else:
            break
    return found
