"""The nodes that a run did not bring where they shall be, kept for ``--limit @FILE``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from platformdirs import user_state_path

from cli.keep import write_private


def retry_file(target: str) -> Path:
    """Return where the failed nodes of an inventory are kept: one file per inventory."""
    path = Path(target).resolve()
    # Two inventories may have one name.
    key = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    return user_state_path("pyinfra-sglang") / "failed" / f"{path.stem}-{key}.txt"


def keep_failed(target: str, nodes: Mapping[str, str]) -> Path | None:
    """Keep the names of nodes, each with what is wrong as a remark: it failed, was refused, was not
    begun with. Return the file; with none of them the file goes.

    What an older run failed on is no news once a run went well. A state directory that cannot
    be written to is no failure of the run: nothing is kept then.
    """
    path = retry_file(target)
    try:
        if not nodes:
            path.unlink(missing_ok=True)
            return None
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, "".join(f"{name}  # {word}\n" for name, word in nodes.items()))
    except OSError:
        return None
    return path


def names_in(path: Path) -> list[str]:
    """Return the names in a file, one a line; ``#`` begins a remark. Raises OSError, ValueError."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [name for line in lines if (name := line.partition("#")[0].strip())]
