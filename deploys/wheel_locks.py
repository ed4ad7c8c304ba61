"""Reads the operator's own locks of Python packages, on the controller."""

from __future__ import annotations

from pathlib import Path

from plans.ownlock import OwnLock
from plans.wishes import Wishes, WishesError

MOST_BYTES = 4 * 1024 * 1024
"""Far above any real lock: one of 206 packages has 41 kB."""


def with_own_locks(wishes: Wishes, node: str, target: str | None) -> Wishes:
    """Return the wishes with the texts of the locks that they name.

    ``target`` is what the command was given: a path is relative to the folder of an inventory
    file, else to the directory that this runs in. Raises WishesError, with each that cannot be
    read.
    """
    of_door = wishes.door.lock if wishes.door is not None else None
    named = [wishes.wheel_lock, of_door, *(one.wheel_lock for one in wishes.services)]
    if all(one is None for one in named):
        return wishes
    folder = _folder(target)
    messages: list[str] = []

    def read(own: OwnLock | None, where: str, key: str = "wheel_lock") -> OwnLock | None:
        if own is None or own.text is not None:
            return own
        try:
            return own.model_copy(update={"text": _text(folder / Path(own.path).expanduser())})
        except (OSError, ValueError, RuntimeError) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            messages.append(
                f"{node}: {where}{key}: {own.path} could not be read: {why.lower()}: "
                "write the path of a lock of packages, relative to the inventory file"
            )
            return own

    services = tuple(
        one.model_copy(update={"wheel_lock": read(one.wheel_lock, f"services[{one.name}].")})
        if one.wheel_lock is not None
        else one
        for one in wishes.services
    )
    update: dict[str, object] = {"services": services}
    if wishes.wheel_lock is not None:
        update["wheel_lock"] = read(wishes.wheel_lock, "")
    if wishes.door is not None and of_door is not None:
        with_text = {"lock": read(of_door, "door.", "lock")}
        update["door"] = wishes.door.model_copy(update=with_text)
    if messages:
        raise WishesError(messages)
    return wishes.model_copy(update=update)


def _folder(target: str | None) -> Path:
    try:
        return Path(target).parent if target is not None and Path(target).is_file() else Path()
    except OSError:  # too long a name: hosts, one after the other
        return Path()


def _text(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError("it is longer than any lock")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is no text") from None
