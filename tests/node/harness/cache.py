"""The directory where costly things are made once and kept for every later run of the node tier.

`SGLANG_NODE_CACHE` names it; `/var/cache/pyinfra-sglang-tests` otherwise. It must lie on a real
disk: Docker's stores and the nodes' own changes are kept there, and neither works on an overlay.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

DEFAULT = "/var/cache/pyinfra-sglang-tests"


class HarnessError(RuntimeError):
    """Something that the harness needs is missing or failed; the text says what."""


def cache_dir() -> Path:
    """The cache directory, made where it is not there yet."""
    path = Path(os.environ.get("SGLANG_NODE_CACHE", DEFAULT)).resolve()
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file beside `path`, so that two runs never make the same thing twice."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.parent / f".{path.name}.lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def make_once(path: Path, make: Callable[[Path], None], stamp: str = "") -> Path:
    """Return directory `path`, made by `make(beside)` and renamed into place when it is whole.

    `stamp` is everything that the content depends on: where it differs from the stamp of what is
    there, or where no stamp is there, the directory is made anew. What a cut run left beside it
    is thrown away first. Raises what `make` raises, and then leaves nothing in place.
    """
    with locked(path):
        mark = path.parent / f".{path.name}.stamp"
        if path.is_dir() and mark.is_file() and mark.read_text() == stamp:
            return path
        mark.unlink(missing_ok=True)
        for old in (path, *path.parent.glob(f".{path.name}.making-*")):
            shutil.rmtree(old, ignore_errors=True)
        # A name of its own: a program of a killed run may still be writing under the old one.
        beside = path.parent / f".{path.name}.making-{os.getpid()}"
        beside.mkdir()
        make(beside)
        beside.rename(path)
        mark.write_text(stamp)
    return path


def run(*argv: str | Path, env: dict[str, str] | None = None, text: str | None = None) -> str:
    """Run a program on this machine and return its output; raise HarnessError with its last lines.

    `env` is added to the environment, `text` is its input (none otherwise).
    """
    result = subprocess.run(
        [str(word) for word in argv],
        input=text if text is not None else "",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **(env or {})},
    )
    if result.returncode:
        tail = "\n".join(result.stdout.splitlines()[-15:])
        raise HarnessError(f"{' '.join(map(str, argv))}: exit {result.returncode}\n{tail}")
    return result.stdout
