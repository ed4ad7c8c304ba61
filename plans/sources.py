"""Where the operator's secrets are: never what they are.

A secret does not stand in an inventory. What looks like one in a place that
can be read later is put aside before anything else sees it, so that no message
can repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from releases.yaml_text import read_yaml

HOW = "write where it is: {'env': 'NAME'}, {'file': '/path'} or {'command': ['program', 'word']}"

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


class Source(BaseModel):
    """Where a secret is read from, on the controller: just one of these."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str | None = None
    env: str | None = None
    # Not shown: among its words may be what others should not read.
    command: tuple[str, ...] | None = Field(default=None, repr=False)

    def __str__(self) -> str:
        """Say where it is, in a few words."""
        if self.file is not None:
            return f"the file {self.file}"
        if self.env is not None:
            return f"the variable {self.env}"
        return f"the command {(self.command or ('',))[0]}"


def read_source(value: Any) -> Source | None:
    """Return the source that an inventory names. Raises ValueError, which never has the value."""
    if value is None or isinstance(value, Source):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"is not a mapping: a secret does not stand in an inventory; {HOW}")
    keys = set(value)
    if len(keys) != 1 or not keys <= {"file", "env", "command"}:
        raise ValueError(f"must have one of file, env and command: {HOW}")
    ((key, where),) = value.items()
    if key == "command":
        return Source(command=_command(where))
    if not isinstance(where, str):
        raise ValueError(f"{key} is no text: {HOW}")
    if key == "env":
        if not VARIABLE.fullmatch(where):
            raise ValueError(
                "env is no name of a variable: write the name of an environment variable of the "
                "controller, such as {'env': 'SGLANG_API_KEY'}, not its value"
            )
        return Source(env=where)
    path = PurePosixPath(where)
    if not (path.is_absolute() or where.startswith("~/")) or not where.isprintable():
        raise ValueError(
            "file is no absolute path: write one of the controller, such as {'file': '~/key'}"
        )
    return Source(file=where)


def _command(where: Any) -> tuple[str, ...]:
    words = list(where) if isinstance(where, list | tuple) else []
    good = all(isinstance(word, str) and "\0" not in word for word in words)
    if not words or not good or not words[0]:
        raise ValueError(
            "command is no list of words: no shell reads it; "
            "write {'command': ['pass', 'show', 'sglang/key']}"
        )
    return tuple(words)


SecretSource = Annotated[Source | None, BeforeValidator(read_source)]


class Secrets(BaseModel):
    """Secrets of a node: where each is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hub_token: SecretSource = None


class Keyed(BaseModel):
    """What a service has that holds keys itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=False)

    api_key: SecretSource = None
    admin_api_key: SecretSource = None

    @property
    def keys(self) -> dict[str, Source]:
        """Where the keys are that the server shall hold, by its flag's name."""
        given = {"api-key": self.api_key, "admin-api-key": self.admin_api_key}
        return {flag: source for flag, source in given.items() if source is not None}


@cache
def secret_data() -> Mapping[str, Any]:
    """Return what ``plans/data/secrets.yaml`` says."""
    text = Path(__file__).with_name("data").joinpath("secrets.yaml").read_text(encoding="utf-8")
    found: Mapping[str, Any] = read_yaml(text)
    return found


def secret_argument(name: str) -> str | None:
    """Return what to write instead where an argument's name says that it is a secret, or None."""
    data = secret_data()
    flag = name.strip().lower().replace("_", "-").lstrip("-")
    told: str | None = data["arguments"].get(flag)
    if told is None and re.search(data["argument_pattern"], flag):
        told = str(data["argument_otherwise"])
    return told


def secret_variable(name: str) -> str | None:
    """Return what to write instead where a variable's name says that it is a secret, or None."""
    data = secret_data()
    told: str | None = data["environment"].get(name.strip().upper())
    if told is None and re.search(data["environment_pattern"], name.strip().upper()):
        told = str(data["environment_otherwise"])
    return told


def put_aside(data: Mapping[Any, Any]) -> tuple[dict[Any, Any], list[str]]:
    """Return an inventory's data without the secrets in it, and a message for each.

    Takes data of any shape. What is left is what the rest of the validation
    sees: its messages cannot repeat what is not there.
    """
    kept = dict(data)
    said: list[str] = []
    services = kept.get("services")
    if isinstance(services, list | tuple):
        kept["services"] = [_service(one, i, said) for i, one in enumerate(services)]
    return kept, said


def _service(service: Any, index: int, said: list[str]) -> Any:
    if not isinstance(service, Mapping):
        return service
    kept = dict(service)
    name = kept.get("name")
    where = f"services[{name if isinstance(name, str) and name else index}]"
    for key, judge, code in (
        ("arguments", secret_argument, "SECRET_IN_ARGUMENTS"),
        ("environment", secret_variable, "SECRET_IN_ENVIRONMENT"),
    ):
        given = kept.get(key)
        if isinstance(given, Mapping):
            told = {word: judge(word) for word in _texts(given)}
            kept[key] = {word: value for word, value in given.items() if not told.get(word)}
            said += [
                f"{where}.{key}.{_shown(word)}: {code}: {way}" for word, way in told.items() if way
            ]
    if kept.get("admin_api_key") is not None and kept.get("api_key") is None:
        said.append(
            f"{where}.admin_api_key: goes with api_key: with an admin key alone SGLang gives it "
            "to everyone who asks for /server_info"
        )
    return kept


def _shown(word: str) -> str:
    return word if word.isprintable() else ascii(word)


def _texts(words: Iterable[Any]) -> list[str]:
    return [word for word in words if isinstance(word, str)]
