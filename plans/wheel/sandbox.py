"""The wheel unit's own directives, for a transient unit: they stand once, in its text."""

from __future__ import annotations

LEFT_OUT = (
    # What it runs, how it is told to be up, and how it stops and starts again.
    "Type", "NotifyAccess", "ExecStart", "ExecStop", "ExecReload", "ExecCondition", "KillMode",
    "SuccessExitStatus", "Restart", "Timeout", "Watchdog", "SyslogIdentifier", "LogFilterPatterns",
    # The canary has an environment and caches of its own, and no key.
    "EnvironmentFile", "LoadCredential", "ReadWritePaths", "BindPaths",
)  # fmt: skip
"""How directives of ``[Service]`` begin that a canary does not take over; all others it does."""


class UnknownSpecifier(ValueError):
    """A directive holds a specifier that only systemd could fill in."""


def directives(text: str) -> tuple[tuple[str, str], ...]:
    """Return the directives of ``[Service]`` in a unit or drop-in, in their order."""
    found, inside = [], False
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("["):
            inside = stripped == "[Service]"
        elif inside and stripped and stripped[0] not in "#;":
            name, _, value = stripped.partition("=")
            found.append((name.strip(), value.strip()))
    return tuple(found)


def sandbox(service: str, *texts: str) -> tuple[str, ...]:
    """Return what ``systemd-run --property`` gets to close a process as the unit closes the server.

    ``texts`` are the unit's and its drop-ins', in systemd's order. Raises UnknownSpecifier where
    a directive cannot be carried over.
    """
    return tuple(
        f"{name}={_filled(value, service)}"
        for text in texts
        for name, value in directives(text)
        if not name.startswith(LEFT_OUT)
    )


def _filled(value: str, service: str) -> str:
    parts = value.split("%%")
    for part in parts:
        if "%" in part.replace("%i", ""):
            raise UnknownSpecifier(value)
    return "%%".join(part.replace("%i", service) for part in parts)
