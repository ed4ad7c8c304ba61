"""Environments of Python packages on the node, and the user that runs them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from facts import fields
from facts.records import ABSENT, Account, Environment, Unknown
from facts.sections import Section, Sections


def parse_environments(sections: Sections) -> dict[str, Environment]:
    """Return every directory below the environments' own, also the half-made ones."""
    found: dict[str, Environment] = {}
    for section in sections.all("environment"):
        path = section.first
        if path is not None and path.startswith("/"):
            found[path.rpartition("/")[2]] = _environment(path, section)
    return found


def environments_unread(sections: Sections) -> Unknown | None:
    """Return why the environments could not be looked at; None where they could, or are none."""
    missing = sections.missing("environments")
    if missing.why != "absent":
        return missing
    closed = sections.get("environments.closed")
    if closed is not None:
        return closed.failure or Unknown("unreadable", "no permission")
    return next(
        (section.failure for section in sections.all("environment") if section.failure), None
    )


def _environment(path: str, section: Section) -> Environment:
    if section.failure is not None:
        failure = section.failure
        return Environment(path, failure, failure, (), failure, failure)
    mark: str | Unknown = ABSENT
    site: str | Unknown = ABSENT
    parts, changed = [], []
    time, compared = "", False
    for line in section.out[1:]:
        word, _, rest = line.strip().partition(" ")
        if word == "mark" and rest.strip():
            mark = rest.strip()
        elif word == "site":
            site = fields.text("Environment.site_packages", rest)
        elif word in ("part", "cuda") and rest:
            parts.append(rest)
        elif word == "time":
            time = rest
        elif word == "compared":
            compared = True
        elif word in ("more", "less") and rest:
            changed.append(f"{'+' if word == 'more' else '-'} {rest}")
    said = _read(mark)
    if isinstance(said, Unknown):
        return Environment(path, said, site, tuple(parts), said, said)
    if str(said["site_time"]) != time:
        changed.append(f"{said['site_packages']} was written to")
    return Environment(
        path,
        mark,
        site,
        tuple(parts),
        tuple(part for part in said["parts"] if part not in parts),
        tuple(changed) if compared else Unknown("unreadable", "its list of packages is gone"),
    )


def _read(mark: str | Unknown) -> Mapping[str, Any] | Unknown:
    """Return what a mark says, or why it says nothing."""
    if isinstance(mark, Unknown):
        return mark
    try:
        said = json.loads(mark)
    except (ValueError, RecursionError):
        return Unknown("malformed", mark[:200])
    parts = said.get("parts") if isinstance(said, dict) else None
    whole = isinstance(parts, list) and all(isinstance(part, str) for part in parts)
    if not whole or not {"site_time", "site_packages"} <= said.keys():
        return Unknown("malformed", mark[:200])
    read: Mapping[str, Any] = said
    return read


def parse_accounts(sections: Sections) -> dict[str, Account]:
    """Return the users that were asked for, as getent tells them; it says nothing of one that is
    not there."""
    found: dict[str, Account] = {}
    for section in sections.all("account"):
        asked = fields.text("Account.name", section.first)
        if isinstance(asked, Unknown):
            continue
        if section.failure is not None:
            found[asked] = Account(asked, section.failure)
            continue
        line = next((line for line in section.out[1:] if line.strip()), None)
        found[asked] = Account(asked, False) if line is None else _account(asked, line)
    return found


def _account(name: str, line: str) -> Account:
    words = line.split(":")
    if len(words) != 7 or words[0] != name:
        return Account(name, Unknown("malformed", line[:200]))
    return Account(
        name,
        True,
        fields.number("Account.uid", words[2]),
        fields.number("Account.gid", words[3]),
        fields.text("Account.home", words[5]),
        fields.text("Account.shell", words[6]),
    )
