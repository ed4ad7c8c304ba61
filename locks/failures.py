"""The one error that asking a registry raises."""

from typing import Literal

RegistryCode = Literal[
    "REGISTRY_UNAUTHORIZED",
    "REGISTRY_NOT_FOUND",
    "REGISTRY_RATE_LIMITED",
    "REGISTRY_UNAVAILABLE",
    "REGISTRY_GARBAGE",
    "REGISTRY_UNREACHABLE",
    "DIGEST_MISMATCH",
    "ARCHITECTURE_MISSING",
]


class RegistryError(Exception):
    """What went wrong at a registry.

    `code` is stable; `host` was asked for `asked`, `came` is what came instead of an answer,
    `mend` what helps, and `command` the command for that where there is one. The message holds all
    of it. None of it is ever a secret, nor text that a server chose freely.
    """

    def __init__(
        self,
        code: RegistryCode,
        *,
        host: str,
        asked: str,
        came: str,
        mend: str,
        command: str | None = None,
    ) -> None:
        super().__init__(f"{host} was asked for {asked}: {came}. {mend}")
        self.code: RegistryCode = code
        self.host = host
        self.asked = asked
        self.came = came
        self.mend = mend
        self.command = command

    def after(self, earlier: "RegistryError") -> "RegistryError":
        """Return this error, with what a mirror had said before it."""
        return RegistryError(
            self.code,
            host=self.host,
            asked=self.asked,
            came=f"{self.came} (before that, the mirror {earlier.host}: {earlier.came})",
            mend=self.mend,
            command=self.command,
        )
