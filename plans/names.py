"""Names and paths in the operator's data: what each may hold, and what to write instead."""

from __future__ import annotations

import ipaddress
import re
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator

from locks.references import is_revision


def read_address(value: str, such_as: str) -> str:
    """Return an IP address in its usual form. Raises ValueError, which names ``such_as`` as one."""
    try:
        address = ipaddress.ip_address(value)
        # Docker publishes no address with a zone (fe80::1%eth0).
        if getattr(address, "scope_id", None):
            raise ValueError
        return str(address)
    except ValueError:
        raise ValueError(f"is {value!r}: write an IP address, {such_as}") from None


def without_user(image: str | None) -> str | None:
    """Return an image's reference. Raises ValueError, which never shows it, where it has a user."""
    if image is not None and re.match(r"[^/]*@[^/]*/", image):
        raise ValueError("holds a user or password: leave it out, and log in with docker login")
    return image


def absolute(value: str) -> str:
    """Return an absolute path on a node in its plain form. Raises ValueError for another."""
    path = PurePosixPath(value)
    if not path.is_absolute():
        raise ValueError(f"is a relative path: write an absolute one, such as /srv/{value}")
    if ".." in path.parts:
        raise ValueError("holds '..': write the path it means")
    # docker's --mount is a CSV with its own quoting, and systemd splits RequiresMountsFor=.
    if re.search(r"[\s:,\"'\\%$]", value) or not value.isprintable():
        raise ValueError(
            "holds white space or one of : , \" ' \\ % $: use a path (or a link) without"
        )
    return str(path)


def revision(value: str) -> str:
    """Return a revision of a model as it is. Raises ValueError for what no hub has."""
    if not is_revision(value):
        raise ValueError(f"is {value!r}: write a branch (main), a tag, or a commit of 40 digits")
    return value


AbsolutePath = Annotated[str, AfterValidator(absolute)]
Revision = Annotated[str, AfterValidator(revision)]
