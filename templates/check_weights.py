"""Checks that a model's files are there, whole, and readable by the server's user.

    python3 check_weights.py job.json

Runs in a throw-away container of the service's own image with the flags of the service's own unit:
what cannot be read here could not be read there. The last line that begins with `@failed CODE` says
why it failed (exit status 1); `@weights` is followed by what was seen, as JSON.

job.json: {"directory", "files": [[path, bytes]] or null}

Must run on Python 3.10 and newer, with nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any


class Failed(Exception):
    """What ends the run: a stable code and a sentence."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def size(amount: float) -> str:
    """Return bytes as people read them."""
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def shards_of(directory: Path) -> Iterator[tuple[str, str]]:
    """Give each index of a model's directory with each file that it names."""
    for index in sorted(directory.glob("*.index.json")):
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except PermissionError:
            raise unreadable(index) from None
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            raise Failed(
                "WEIGHTS_INCOMPLETE", f"{index} is not an index of weights that can be read."
            ) from None
        for name in sorted(map(str, names)):
            yield index.name, name


def index_is_whole(directory: Path) -> None:
    """Raise Failed where an index names a file that is not there, or is empty."""
    safe = any(directory.glob("*.safetensors"))
    for index, name in shards_of(directory):
        # The index of a format that was left out names what was left out with it.
        if safe and not name.endswith(".safetensors"):
            continue
        try:
            there = (directory / name).stat().st_size > 0
        except PermissionError:
            raise unreadable(directory / name) from None
        except OSError:
            there = False
        if not there:
            raise Failed(
                "WEIGHTS_INCOMPLETE", f"{index} names {name}, which is not in {directory}."
            )


def unreadable(path: Path) -> Failed:
    """Return the refusal for a path that the server's user may not read, naming where it ends."""
    closed = path
    for parent in [*reversed(path.parents), path]:
        try:
            if parent.is_dir():
                os.listdir(parent)
        except PermissionError:
            closed = parent
            break
        except OSError:
            continue
    owner = ""
    with suppress(OSError):
        seen = closed.stat()
        owner = f" (owner {seen.st_uid}:{seen.st_gid}, mode {seen.st_mode & 0o7777:04o})"
    return Failed(
        "WEIGHTS_UNREADABLE",
        f"{closed}{owner} cannot be read by the server, which is root without root's privileges "
        f"(an NFS server that squashes root does the same): chmod -R a+rX {closed}",
    )


def read_start(path: Path) -> bytes:
    """Return the first bytes of a file that the server will read."""
    try:
        with path.open("rb") as file:
            return file.read(8)
    except PermissionError:
        raise unreadable(path) from None
    except FileNotFoundError:
        raise Failed("WEIGHTS_INCOMPLETE", f"{path} is not there.") from None
    except OSError as error:
        raise Failed("WEIGHTS_UNREADABLE", f"{path}: {error.strerror or error}.") from None


def safetensors_is_whole(path: Path, start: bytes) -> None:
    """Raise Failed where a file is shorter than its own header says: a copy that was cut."""
    here = path.stat().st_size
    if start.startswith(b"version "):
        raise Failed(
            "WEIGHTS_INCOMPLETE",
            f"{path} is a pointer of Git LFS, not the file itself: git lfs pull",
        )
    length = int.from_bytes(start, "little")
    try:
        if len(start) < 8 or length > min(here, 100_000_000):
            raise ValueError
        with path.open("rb") as file:
            file.seek(8)
            header = json.loads(file.read(length))
        ends = [one["data_offsets"][1] for key, one in header.items() if key != "__metadata__"]
        wanted = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise Failed("WEIGHTS_INCOMPLETE", f"{path} does not begin as safetensors do.") from None
    if here < wanted:
        raise Failed(
            "WEIGHTS_INCOMPLETE", f"{path} has {size(here)} of {size(wanted)}: its copy was cut."
        )


def check(data: dict[str, Any]) -> None:
    """Check that a model's files are there, whole and readable, as the server's user."""
    directory = Path(data["directory"])
    if directory.is_file() and directory.suffix == ".gguf":
        read_start(directory)
        say(directory, [directory], None)
        return
    try:
        names = sorted(os.listdir(directory))
    except PermissionError:
        raise unreadable(directory) from None
    except OSError as error:
        raise Failed("WEIGHTS_INCOMPLETE", f"{directory}: {error.strerror or error}.") from None
    for path, expected in data["files"] or ():
        place = directory / path
        read_start(place)
        if place.stat().st_size != expected:
            raise Failed(
                "WEIGHTS_INCOMPLETE",
                f"{place} has {place.stat().st_size} bytes, the lock says {expected}.",
            )
    index_is_whole(directory)
    weights = []
    for name in names:
        place = directory / name
        if place.suffix not in (".safetensors", ".bin", ".pt", ".pth", ".gguf"):
            if place.suffix in (".json", ".model", ".txt", ".jinja"):
                read_start(place)
            continue
        start = read_start(place)
        if not start:
            raise Failed("WEIGHTS_INCOMPLETE", f"{place} is empty.")
        if place.suffix == ".safetensors":
            safetensors_is_whole(place, start)
        weights.append(place)
    if not weights:
        raise Failed("WEIGHTS_INCOMPLETE", f"there are no weights in {directory}.")
    say(directory, weights, config_of(directory))


def config_of(directory: Path) -> dict[str, Any] | None:
    """Return a model's config.json; None where the model is of a format that has none."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if (directory / "params.json").exists() or any(directory.glob("*.gguf")):
            return None
        raise Failed("WEIGHTS_INCOMPLETE", f"{path} is not there.") from None
    except PermissionError:
        raise unreadable(path) from None
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict):
        raise Failed("WEIGHTS_INCOMPLETE", f"{path} is no JSON object.")
    return config


def say(directory: Path, weights: list[Path], config: dict[str, Any] | None) -> None:
    """Print what a check saw."""
    architectures = (config or {}).get("architectures") or []
    seen = {
        "files": len(weights),
        "bytes": sum(one.stat().st_size for one in weights),
        "has_config": config is not None,
        "architectures": [str(one) for one in architectures],
    }
    print(f"@weights {json.dumps(seen)}", flush=True)


def main(job: str) -> int:
    """Do what the file `job` says; return the exit status."""
    try:
        check(json.loads(Path(job).read_text(encoding="utf-8")))
    except Failed as failed:
        print(f"@failed {failed.code} {failed}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
