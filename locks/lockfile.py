"""`sglang.lock` on the disk: JSON under a comment that says what made it.

JSON, because it has one reading and diffs line by line; two keys of one name, as a merge can leave
them, are refused. Any bytes give a lock or a LockError, never a traceback.
"""

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from locks.records import SCHEMA_VERSION, Lock

HEADER = (
    "# sglang.lock: which images and models the names in the inventory mean.\n"
    "# Made by `sglang-node lock`. Nothing in it is written by hand: to change it, run that again\n"
    "# (`--refresh` asks for everything anew). Commit it beside the inventory.\n"
)
# Far above any real lock (a model of 1000 files takes 200 kB), far below what hurts to read.
MAX_BYTES = 64 * 1024 * 1024


class LockError(Exception):
    """A lock file that cannot be read or written: which file, which key, what to do."""

    def __init__(self, path: Path, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.code = "LOCK_FILE"
        self.path = path
        self.key = key


def read_lock(path: Path) -> Lock | None:
    """Read a lock file. Returns None when there is none; raises LockError when it is no good."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LockError(path, f"{path} cannot be read: {_reason(error)}.") from None
    return parse_lock(data, path)


def parse_lock(data: bytes, path: Path) -> Lock:
    """Parse the bytes of a lock file; `path` is only for the messages. Raises LockError."""
    if len(data) > MAX_BYTES:
        raise _broken(path, None, f"it is {len(data)} bytes long, which no lock is")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _broken(path, None, f"byte {error.start} is not UTF-8") from None
    if re.search(r"^(<{7}|={7}|>{7})( |$)", text, re.MULTILINE):
        raise _broken(path, None, "it holds the marks of an unfinished git merge")
    return _validated(_loaded(text, path), path)


def render_lock(lock: Lock) -> bytes:
    """Return the bytes of a lock file: the same lock always gives the same bytes."""
    body = json.dumps(lock.to_json(), indent=2, ensure_ascii=True)
    return (HEADER + body + "\n").encode("ascii")


def write_lock(path: Path, lock: Lock) -> bool:
    """Write a lock beside its place, then rename it there; make its folder when it is missing.

    Returns False when the file already said exactly this and was left alone. Raises LockError.
    """
    data = render_lock(lock)
    place = Path(os.path.realpath(path))
    try:
        if place.is_file() and place.read_bytes() == data:
            return False
        place.parent.mkdir(parents=True, exist_ok=True)
        _replace(place, data)
    except OSError as error:
        raise LockError(path, f"{path} cannot be written: {_reason(error)}.") from None
    return True


def _replace(place: Path, data: bytes) -> None:
    handle, beside = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, 0o644)
        os.replace(beside, place)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def _loaded(text: str, path: Path) -> Any:
    lines = text.split("\n")
    comments = 0
    while comments < len(lines) and lines[comments].startswith("#"):
        comments += 1
    # Blank lines in place of the comments: positions in messages are those of the file.
    body = "\n" * comments + "\n".join(lines[comments:])
    try:
        return json.loads(body, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise _broken(path, None, where) from None
    except (ValueError, RecursionError) as error:
        raise _broken(path, None, _reason(error)) from None


def _validated(data: Any, path: Path) -> Lock:
    if not isinstance(data, dict):
        raise _broken(path, None, "it holds no JSON object")
    version = data.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise LockError(
            path,
            f"{path}: schema_version is {_shown(version)} and this sglang-node knows "
            f"{SCHEMA_VERSION}: a newer one wrote it. Update sglang-node, or move the file away "
            "and run `sglang-node lock` again.",
            "schema_version",
        )
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        raise _broken(path, "schema_version", f"it must be 1 to {SCHEMA_VERSION}")
    try:
        return Lock.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        key = ".".join(_shown(part) for part in first["loc"]) or "the whole file"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise _broken(path, key, f"{_shown(first['msg'])}{more}") from None


def _broken(path: Path, key: str | None, why: str) -> LockError:
    at = f" at {key}" if key else ""
    return LockError(
        path,
        f"{path} is not a lock this program can use{at}: {why}. Take it back from version control "
        "(`git checkout -- sglang.lock`), or move it away and run `sglang-node lock` again.",
        key,
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {_shown(twice)} stands twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number a lock holds")


def _shown(value: object) -> str:
    """Show something out of the file in a message: printable ASCII, and not too long."""
    try:
        text = str(value).encode("ascii", "backslashreplace").decode("ascii")
    except ValueError:  # an integer too long for Python to print
        return "a very large number"
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= 120 else text[:120] + "..."


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return _shown(error)
