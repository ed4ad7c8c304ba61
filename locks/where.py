"""Where the lock of a target lives."""

import hashlib
import re
from pathlib import Path

from platformdirs import user_config_path

LOCK_NAME = "sglang.lock"
_LONGEST_NAME = 80


def lock_path(target: str) -> Path:
    """Return the path of the lock for a TARGET of the command line. Nothing is created.

    For an inventory file (one that exists, or any name ending in `.py`): `sglang.lock` beside it,
    where it is committed with the inventory. For all else (`@local`, host names): a file of its
    own under the user's configuration directory. An Ansible inventory (`@ansible/PATH`) is one
    whether PATH is a file or a directory, all of whose files Ansible would read: it is beside both.
    """
    ansible = target.removeprefix("@ansible/")
    if ansible != target and Path(ansible).exists():
        return Path(ansible).with_name(LOCK_NAME)
    if target.endswith(".py") or _is_file(target):
        return Path(target).with_name(LOCK_NAME)
    return user_config_path("sglang-node") / "locks" / f"{_file_name(target)}.lock"


def _is_file(target: str) -> bool:
    try:
        return Path(target).is_file()
    except (OSError, ValueError):  # too long a name, or one with a null byte
        return False


def _file_name(target: str) -> str:
    """A name for a file: the target itself where it is plain, else a checksum keeps them apart."""
    plain = re.sub(r"[^A-Za-z0-9@._-]", "_", target)[:_LONGEST_NAME]
    if plain == target and not target.startswith(".") and target:
        return plain
    checksum = hashlib.sha256(target.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{plain.lstrip('.')}-{checksum}"
