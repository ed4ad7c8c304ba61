"""Who the user is at a registry: what `docker login` left behind, read the way docker reads it."""

import base64
import binascii
import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from locks.references import DOCKER_HUB

_HUB_KEY = "https://index.docker.io/v1/"
_HELPER_NAME = re.compile(r"[A-Za-z0-9._-]+")
_HELPER_PATIENCE_S = 15.0


@dataclass(frozen=True, repr=False)
class Credentials:
    """A user's name and password, or an identity token (OAuth2 refresh token) in its place.

    `source` says where they are from, for messages. The repr shows nothing secret.
    """

    username: str
    password: str = field(default="")
    identity_token: str | None = None
    source: str = "the command line"

    def __repr__(self) -> str:
        return f"Credentials(from {self.source})"

    def basic(self) -> str:
        """Return the value of a Basic Authorization header."""
        pair = f"{self.username}:{self.password}".encode()
        return "Basic " + base64.b64encode(pair).decode("ascii")


@dataclass(frozen=True)
class Found:
    """Credentials or none, and a note on what was wrong with the place they should be in."""

    credentials: Credentials | None = None
    note: str | None = None


def docker_config_path() -> Path:
    """Return where docker keeps its configuration: $DOCKER_CONFIG or ~/.docker, config.json."""
    folder = os.environ.get("DOCKER_CONFIG")
    return (Path(folder) if folder else Path.home() / ".docker") / "config.json"


def find_credentials(registry: str, config: Path) -> Found:
    """Look up a registry (`docker.io`, `host:port`) in a docker configuration file.

    As docker does: `credHelpers` for this registry, else `credsStore`, else `auths`. A missing
    file is no credentials; a broken one, or a helper that fails, is no credentials and a note.
    """
    try:
        data = json.loads(config.read_bytes())
    except FileNotFoundError:
        return Found()
    except (OSError, ValueError, RecursionError):
        return Found(note=f"{config} could not be read as JSON")
    if not isinstance(data, dict):
        return Found(note=f"{config} holds no JSON object")
    keys = _keys(registry)
    for helper in (_first(data.get("credHelpers"), keys), data.get("credsStore")):
        if isinstance(helper, str) and helper:
            return _ask_helper(helper, keys[0])
    entry = _first(data.get("auths"), keys)
    return _from_auths(entry, str(config)) if entry is not None else Found()


def _keys(registry: str) -> list[str]:
    if registry == DOCKER_HUB:
        return [_HUB_KEY, "index.docker.io", "docker.io", "registry-1.docker.io"]
    return [registry, f"https://{registry}", f"https://{registry}/", f"http://{registry}"]


def _first(table: Any, keys: list[str]) -> Any:
    if not isinstance(table, dict):
        return None
    return next((table[key] for key in keys if key in table), None)


def _from_auths(entry: Any, source: str) -> Found:
    broken = Found(note=f"the entry in {source} could not be read")
    if not isinstance(entry, dict):
        return broken
    username, password = entry.get("username"), entry.get("password")
    auth = entry.get("auth")
    if isinstance(auth, str) and auth:
        try:
            username, colon, password = base64.b64decode(auth).decode().partition(":")
        except (binascii.Error, ValueError):
            return broken
        if not colon:
            return broken
        password = password.strip("\0")
    token = entry.get("identitytoken")
    token = token if isinstance(token, str) and token else None
    if not isinstance(username, str) or not isinstance(password, str):
        return Found(Credentials("", "", token, source)) if token else Found()
    return Found(Credentials(username, password, token, source))


def _ask_helper(name: str, key: str) -> Found:
    program = f"docker-credential-{name}"
    if not _HELPER_NAME.fullmatch(name):
        return Found(note=f"the docker configuration names a credential helper {name[:60]!a}")
    try:
        answer = subprocess.run(
            [program, "get"],
            input=key.encode(),
            capture_output=True,
            timeout=_HELPER_PATIENCE_S,
            check=False,
        )
    except (OSError, ValueError):
        return Found(note=f"{program}, named in the docker configuration, could not be started")
    except subprocess.TimeoutExpired:
        return Found(note=f"{program} did not answer in {_HELPER_PATIENCE_S:.0f} s")
    if answer.returncode != 0:
        if b"not found" in answer.stdout + answer.stderr:
            return Found()
        return Found(note=f"{program} failed with exit code {answer.returncode}")
    try:
        data = json.loads(answer.stdout)
        username, secret = data["Username"], data["Secret"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return Found(note=f"{program} answered something that is not JSON with Username and Secret")
    if not isinstance(username, str) or not isinstance(secret, str) or not secret:
        return Found()
    if username == "<token>":
        return Found(Credentials("", "", secret, program))
    return Found(Credentials(username, secret, None, program))
